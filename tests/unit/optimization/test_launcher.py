"""The script among the words of torchrun."""

from pathlib import Path

import pytest

from ridgeline.optimization.kept_trials import identity
from ridgeline.optimization.launcher import (
    MODULE,
    named_file,
    recorded,
    script_of,
    with_script,
)
from ridgeline.records.run import Target


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


def launched(*words: str) -> Target:
    return Target(kind="module", name=MODULE, arguments=words)


TWO = ("--nproc-per-node", "2")


def test_the_script_and_its_own_arguments() -> None:
    target = launched(*TWO, "train.py", "--data", "other.py")
    assert script_of(target) == Target(
        kind="script", name="train.py", arguments=("--data", "other.py")
    )
    assert script_of(launched(*TWO, "gone.py")) is None
    assert script_of(launched(*TWO, "-m", "package.train", "--config", "train.py")) is None


def test_what_is_written_is_named_after_the_program() -> None:
    package = Path("package")
    package.mkdir()
    (package / "train.py").write_text("")
    (package / "__main__.py").write_text("")
    module = [named_file(Target(kind="module", name=name)) for name in ("package.train", "package")]
    assert module == [package / "train.py", package / "package.py"]
    assert named_file(Target(kind="module", name="elsewhere.fit")) == Path("fit.py")
    assert named_file(Target(kind="code", name="print()")) == Path("code.py")
    assert named_file(Target(kind="script", name="a/b.py")) == Path("a/b.py")
    assert named_file(launched(*TWO, "train.py")) == Path("train.py")


def test_a_script_without_a_launcher_is_itself() -> None:
    target = Target(kind="script", name="train.py", arguments=("--lr", "1"))
    assert script_of(target) == target
    assert with_script(target, "copy.py").name == "copy.py"
    assert script_of(Target(kind="module", name="package.train")) is None


def test_a_copy_is_launched_as_the_script_was() -> None:
    copy = with_script(launched(*TWO, "train.py", "--lr", "1"), "optimized_train.py")
    assert copy == launched(*TWO, "optimized_train.py", "--lr", "1")


def test_each_process_of_a_launcher_is_recorded() -> None:
    assert recorded(launched(*TWO, "train.py", "--lr", "1"), ["-q"]) == [
        "-m", MODULE, *TWO, "-m", "ridgeline", "run", "-q", "--", "train.py", "--lr", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(kind="script", name="train.py", arguments=("-x",)), ["train.py", "-x"]),
        (Target(kind="module", name="package"), ["-m", "package"]),
        (Target(kind="code", name="pass"), ["-c", "pass"]),
    ],
)
def test_others_are_recorded_alone(target: Target, words: list[str]) -> None:
    assert recorded(target, ["-q"]) == ["-m", "ridgeline", "run", "-q", "--", *words]


def test_an_edited_script_elsewhere_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = launched(*TWO, str(tmp_path / "train.py"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = identity(target)
    (tmp_path / "train.py").write_text("x = 1\n")
    assert identity(target) != before

"""`ridgeline optimize` as people type it: the script's options first, names to allow."""

from pathlib import Path

import pytest

from ridgeline.cli.optimize import _allowed, command
from ridgeline.cli.run import command as run
from ridgeline.cli.target import Given, target_of
from ridgeline.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("raise SystemExit('the program was run')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("--lr 0.1 train.py", "train.py --lr 0.1"),
        ("--lr=0.1 train.py --epochs 1", "train.py --lr=0.1 --epochs 1"),
        ("--budget 5m --lr 0.1 --json train.py", "--budget 5m --json train.py --lr 0.1"),
        ("--goal=memory --amp train.py", "--goal=memory train.py --amp"),
        ("--batch-size 8 train.py", "train.py --batch-size 8"),
        ("--lr 0.1 -m package.train --epochs 1", "-m package.train --lr 0.1 --epochs 1"),
    ],
)
def test_script_options_before_the_script_give_an_error_with_the_right_command(
    typed: str, right: str
) -> None:
    with pytest.raises(UsageError) as caught:
        command.make_context("optimize", typed.split())
    assert caught.value.message.startswith("no such option")
    assert caught.value.hint == f"options of the script come after it: ridgeline optimize {right}"
    assert command.make_context("optimize", right.split()) is not None


def test_the_right_command_runs_the_script_with_its_options() -> None:
    words = command.reordered(["--lr", "0.1", "train.py", "a b"]).split(" ", 2)[2]
    assert words == "train.py --lr 0.1 'a b'"
    given = target_of(command.make_context("optimize", ["train.py", "--lr", "0.1", "a b"]))
    assert given == Given("script", "train.py", ("--lr", "0.1", "a b"))


def test_a_flag_followed_by_a_value_belongs_to_the_script() -> None:
    """`--batch 8`: the option is known, and 8 would be the script."""
    words = ["--batch", "8", "train.py"]
    with pytest.raises(UsageError) as caught:
        command.main(words, standalone_mode=False)
    assert caught.value.message == "there is no file 8"
    assert caught.value.hint.endswith("ridgeline optimize train.py --batch 8")


def test_a_missing_script_is_not_replaced_by_another_file(folder: Path) -> None:
    words = ["trian.py", "--config", "train.py"]
    with pytest.raises(UsageError) as caught:
        command.main(words, standalone_mode=False)
    assert caught.value.message == "there is no file trian.py"
    assert caught.value.hint == f"looked for it in {folder}"


def test_run_gives_the_same_error() -> None:
    with pytest.raises(UsageError) as caught:
        run.make_context("run", ["--lr", "0.1", "train.py"])
    assert caught.value.hint.endswith("ridgeline run train.py --lr 0.1")


def test_a_misspelt_option_is_recognised() -> None:
    with pytest.raises(UsageError) as caught:
        command.make_context("optimize", ["--budgte", "5m", "train.py"])
    assert caught.value.message == "no such option --budgte, did you mean --budget?"


def test_an_unknown_fix_name_lists_the_fixes_that_can_be_allowed() -> None:
    with pytest.raises(UsageError) as caught:
        _allowed("int8-dynamic,magic")
    assert caught.value.message == "--allow magic: there is no such fix"
    assert caught.value.hint == "one of: fp8-linear, int8-dynamic"


@pytest.mark.parametrize(
    ("name", "alters"), [("tf32", "rounding alone"), ("pin-memory", "nothing")]
)
def test_allowing_a_fix_that_needs_no_permission_is_reported(
    name: str, alters: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _allowed(f"{name}, int8-dynamic,int8-dynamic") == ("int8-dynamic",)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"ridgeline: --allow {name}: it alters {alters} and is tried anyway; only these need to "
        "be allowed: fp8-linear, int8-dynamic\n"
    )


def test_allowing_a_fix_that_needs_permission_prints_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _allowed("fp8-linear,int8-dynamic") == ("fp8-linear", "int8-dynamic")
    assert _allowed(" , ") == ()
    assert capsys.readouterr() == ("", "")


def test_larger_batches_have_an_option_of_their_own() -> None:
    with pytest.raises(UsageError, match="--batch"):
        _allowed("larger-batch")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "--budget", "1h"], "--budget 20m train.py --budget 1h"),
        (["--budget", "90s", "train.py"], "--budget 20m train.py"),
        (["--budget=90s", "--fresh", "--json", "train.py", "--fresh"],
         "--budget 20m --json train.py --fresh"),
        (["--keep-exact", "--", "-odd.py"], "--budget 20m --keep-exact -- -odd.py"),
        (["-m", "package.train", "a b"], "--budget 20m -m package.train 'a b'"),
    ],
)  # fmt: skip
def test_the_command_with_more_time_is_the_same_but_for_the_time(
    words: list[str], expected: str
) -> None:
    assert command.again(words, budget_s=1200.0) == f"ridgeline optimize {expected}"


def test_times_that_are_not_whole_minutes_are_printed_in_seconds() -> None:
    assert command.again(["a.py"], budget_s=90.0) == "ridgeline optimize --budget 90s a.py"


def test_repeating_measures_anew_and_continuing_does_not() -> None:
    words = ["--budget", "90s", "--fresh", "train.py", "--fresh"]
    assert command.again(words) == "ridgeline optimize --budget 90s train.py --fresh"
    assert command.again(["train.py"], fresh=True) == "ridgeline optimize --fresh train.py"

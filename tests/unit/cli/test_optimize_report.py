"""The report that `ridgeline optimize` writes beside a script, and the line that names it."""

import os
from pathlib import Path

import pytest

from ridgeline.cli.optimize import _deliver
from ridgeline.records.run import Target
from tests.unit.report import made_up_optimized


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    return tmp_path / "jobs"


def _report(script: str, output: Path | None = None) -> None:
    _deliver(
        made_up_optimized.climbed(), False, output, Target(kind="script", name=f"jobs/{script}")
    )


def test_two_scripts_of_a_folder_have_a_report_each(folder: Path) -> None:
    for script in ("train.py", "eval.py", "train.py"):
        _report(script)
    assert sorted(os.listdir(folder)) == [
        "optimized_eval.md", "optimized_eval.svg", "optimized_train.md", "optimized_train.svg",
    ]  # fmt: skip
    assert "optimized_eval.svg" in (folder / "optimized_eval.md").read_text()


def test_a_users_own_file_with_the_reports_name_is_kept(folder: Path) -> None:
    mine = folder / "optimized_train.md"
    mine.write_text("my notes")
    _report("train.py")
    assert mine.read_text() == "my notes"
    assert (folder / "optimized_train_2.md").exists()


def test_a_report_that_cannot_be_written_does_not_cost_the_answer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.rmdir()
    _report("train.py")
    said = capsys.readouterr()
    assert "as fast" in said.out
    assert "could not be written" in said.err


def test_with_an_output_file_the_terminal_has_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _report("train.py", folder / "answer.json")
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    for name in ("answer.json", "optimized_train.md", "optimized_train.svg"):
        assert name in line
        assert (folder / name).exists()

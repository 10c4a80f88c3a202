"""What a summary does not hold is said in whole sentences."""

from pathlib import Path

import pytest

from ridgeline.diagnose.conclusion import conclude
from ridgeline.records.run import ChildrenSeen
from tests.unit.diagnose import made_up_run_directory as made
from tests.unit.diagnose.made_up_steps import step


@pytest.mark.parametrize(("count", "said"), [(1, "1 step is too few"), (2, "2 steps are too few")])
def test_too_few_steps_to_trace_are_counted(tmp_path: Path, count: int, said: str) -> None:
    stepped = [step(index, window="settle") for index in range(count)]
    captured = made.capture(steps=count, windows=())
    found = conclude(
        made.directory(tmp_path, run=made.run_file(), captured=captured, stepped=stepped)
    )
    assert any(said in text for text in found.missing)
    assert (found.step.ci is None) == (found.step.steps == 1)


def test_processes_that_the_program_started_are_told(tmp_path: Path) -> None:
    children = (ChildrenSeen(function="train", place="/code/train.py:7", processes=2),)
    captured = made.capture(children=children, stepping="call")
    found = conclude(made.directory(tmp_path, run=made.run_file(), captured=captured))
    assert any("train()" in text and "2 processes" in text for text in found.missing)
    assert found.verdict.trust.confidence != "good"


def test_where_only_processes_of_its_own_train_that_is_the_verdict(tmp_path: Path) -> None:
    children = (ChildrenSeen(function="train", place="/code/train.py:7", processes=1),)
    captured = made.capture(children=children, stepping="", steps=0, windows=())
    found = conclude(made.directory(tmp_path, run=made.run_file(), captured=captured, stepped=[]))
    assert found.verdict.bound == "unknown"
    assert "train()" in found.verdict.sentence

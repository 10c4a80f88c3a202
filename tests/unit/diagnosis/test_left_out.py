"""What a summary does not hold is said in whole sentences."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.conclusion import conclude
from ridgeline.records.run import ChildrenSeen, DeviceSeen, Settings
from ridgeline.records.run_summary import Energy
from tests.unit.diagnosis import made_up_run_directory as made
from tests.unit.diagnosis.made_up_steps import step


@pytest.mark.parametrize(("count", "said"), [(1, "1 step is too few"), (2, "2 steps are too few")])
def test_too_few_steps_to_trace_are_counted(tmp_path: Path, count: int, said: str) -> None:
    stepped = [step(index, window="settle") for index in range(count)]
    captured = made.capture(steps=count, windows=())
    found = conclude(
        made.directory(tmp_path, run=made.run_file(), captured=captured, stepped=stepped)
    )
    assert any(said in text for text in found.missing)
    assert (found.step.ci is None) == (found.step.steps == 1)


def test_processes_that_the_program_started_are_listed_as_missing(tmp_path: Path) -> None:
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


def test_a_cost_or_an_emission_that_was_asked_for_and_is_not_known_has_its_reason(
    tmp_path: Path,
) -> None:
    def concluded(name: str, **facts: object) -> Energy:
        (tmp_path / name).mkdir()
        stepped = facts.pop("stepped", made.steps(device=False))
        watched = facts.pop("watched", [])
        kind = made.capture(device=DeviceSeen(kind="cpu"))
        run = made.run_file(**facts)
        found = conclude(
            made.directory(
                tmp_path / name, run=run, captured=kind, stepped=stepped, watched=watched
            )
        )
        return found.energy

    unwatched = concluded("a")
    assert (unwatched.cost_missing, unwatched.carbon_missing) == ("", "no-telemetry")
    without_counter = [replace(one, devices=()) for one in made.telemetry()]
    assert concluded("b", watched=without_counter).carbon_missing == "no-counter"
    nothing = concluded("c", watched=without_counter, stepped=[])
    assert (nothing.cost_missing, nothing.carbon_missing) == ("no-steps", "no-counter")
    unasked = concluded("d", settings=Settings())
    assert (unasked.cost_missing, unasked.carbon_missing) == ("", "")

"""What went wrong on our side while a program was looked at is told, once, and not without end."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization import program
from ridgeline.optimization.ladder import Ladder
from ridgeline.optimization.search import Progress
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import Optimized
from ridgeline.records.run import Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import RunSummary
from ridgeline.records.trial import Asked, Trial
from ridgeline.records.verdict import LimitCode, Verdict
from tests.unit.optimization.fake_bench import FakeBench, candidate


class TroubledBench(FakeBench):
    """Every trial notes a problem; with a change on, another."""

    taken, remembered = 0, 0

    def trial(self, fixes: tuple[Asked, ...], **how: Any) -> Outcome:
        found = super().trial(fixes, **how)
        assert found.trial is not None
        noted = ("not evaluated: of " + "+".join(sorted(one.fix for one in fixes)), "memory")
        return Outcome(trial=replace(found.trial, problems=noted))


def optimized(monkeypatch: pytest.MonkeyPatch, folder: Path, **noted: Any) -> Optimized:
    """The whole way of `optimize`, but for the processes."""
    summary = RunSummary(
        name="r", run_dir="r", command="train.py", status="finished",
        verdict=Verdict(bound="compute-bound", reason=because(LimitCode.NO_STEP)), **noted,
    )  # fmt: skip
    known = program.Diagnosis(
        directory=RunDirectory(folder), summary=summary, ground=Ground(device="cpu")
    )
    speeds = {"a": 2.0, "b": 0.5}
    bench = TroubledBench(lambda on: min([speeds[name] for name in on], default=1.0))
    monkeypatch.setattr(program, "diagnose", lambda *args, **how: known)
    ladder = Ladder(bench, [candidate("a"), candidate("b")])
    monkeypatch.setattr(program, "_ladder", lambda *args: (bench, ladder))
    wishes = program.OptimizeSettings(write=False)
    return program.optimize(Target(kind="script", name="train.py"), wishes, folder, Progress())


def test_the_diagnosis_the_unchanged_program_and_the_whole_are_heard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = optimized(monkeypatch, tmp_path, problems=("the regions: KeyError: 3", "memory"))
    assert [one.fix for one in found.rungs if one.status == "kept"] == ["a"]
    assert found.problems == (
        "the regions: KeyError: 3", "memory", "not evaluated: of ", "not evaluated: of a",
    )  # fmt: skip


def test_they_are_bounded_and_the_rest_is_counted() -> None:
    trials = [Trial(problems=(f"problem {at}", "problem 0")) for at in range(9)]
    told = program.problems((), trials)
    assert told == (*(f"problem {at}" for at in range(5)), "4 more of the kind")
    assert program.problems((), trials[:5]) == tuple(f"problem {at}" for at in range(5))


def test_a_missing_reference_is_not_reported_as_a_problem() -> None:
    one = Trial(no_reference="no float64 reference: a call of the model takes too long")
    assert program.problems((), [one]) == ()
    assert program.problems(("a fault",), []) == ("a fault",)

"""A race of a step function in this process: every candidate is timed, one that fails costs itself
alone, and nothing is left behind. How long anything takes is not asked."""

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ridgeline.harness.capture import live
from ridgeline.optimization import race
from ridgeline.optimization.function_program import StepSubject
from ridgeline.optimization.function_race import FunctionRaceProcess
from ridgeline.optimization.function_state import SavedState
from ridgeline.optimization.race import CannotRace, Race, Standing
from ridgeline.records.race import RacePlan
from ridgeline.records.trial import Asked, TrialFailure
from tests.unit.optimization.function_case import Case, differing

ROUNDS = 6
TIME_S = 600.0
FUSED = (Asked(fix="fused-optimizer"),)
LAYOUT = (Asked(fix="channels-last"),)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine end a heat by its rounds, not by its time."""
    monkeypatch.setattr(race, "MAX_ROUNDS", ROUNDS)


def race_of(case: Case, home: Path, step: Any = None) -> Race:
    step = step or case.step
    state = SavedState(torch, (case.model, case.optimizer), step, case.loader)
    subject = StepSubject(torch, step, case.model, case.optimizer, case.loader)
    return Race(
        lambda: FunctionRaceProcess(torch, subject, RacePlan(), home, state, lambda: TIME_S),
        left_s=lambda: TIME_S,
    )


def raced(program: Race, *sets: tuple[Asked, ...]) -> tuple[Standing, ...]:
    try:
        heat = program.heat((), sets, TIME_S)
    finally:
        program.close()
    assert heat.control is not None
    return heat.others


def everything(case: Case) -> dict[str, Any]:
    return {
        **case.state(),
        "race": (DataLoader.__iter__, torch.optim.AdamW.step, vars(case.optimizer).get("step")),
        "limit": torch._dynamo.config.recompile_limit,  # type: ignore[attr-defined]
    }


def test_candidates_are_timed_and_nothing_is_left_behind(tmp_path: Path) -> None:
    import torch._dynamo  # noqa: F401 # its functions are compared

    case = Case()
    before = everything(case)
    found = raced(race_of(case, tmp_path), FUSED, LAYOUT)
    assert [one.fixes for one in found] == [FUSED, LAYOUT]
    assert all(one.is_applied for one in found)
    assert all(one.ratio is not None and one.ratio.pairs >= 2 for one in found)
    assert all(one.step_ms > 0 for one in found)
    assert differing(before, everything(case)) == []
    assert live.session is None


def test_a_step_that_raises_under_a_candidate_costs_that_candidate_alone(tmp_path: Path) -> None:
    case = Case()

    class NeedsPlain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if case.optimizer.param_groups[0]["fused"]:
                raise LookupError("not with a fused update")
            return x

    needs = NeedsPlain()

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        case.step(model, optimizer, needs(batch))

    before = everything(case)
    fused, layout = raced(race_of(case, tmp_path, step), FUSED, LAYOUT)
    assert fused.failure is not None
    assert fused.failure.code == TrialFailure.RAISED
    assert fused.verdict == "INVALID"
    assert layout.ratio is not None
    assert differing(before, everything(case)) == []


def test_where_the_step_itself_raises_the_race_begins_again_without_the_candidate(
    tmp_path: Path,
) -> None:
    case = Case()

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        if optimizer.param_groups[0]["fused"]:
            raise LookupError("outside of every module")
        case.step(model, optimizer, batch)

    before, program = everything(case), race_of(case, tmp_path, step)
    fused, layout = raced(program, FUSED, LAYOUT)
    assert fused.failure is not None
    assert layout.ratio is not None
    assert program.starts == 2
    assert differing(before, everything(case)) == []


def test_a_step_that_raises_by_itself_cannot_be_raced(tmp_path: Path) -> None:
    case = Case()

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        case.step(model, optimizer, batch)
        raise LookupError("no such label")

    before, program = everything(case), race_of(case, tmp_path, step)
    with pytest.raises(CannotRace) as raised:
        program.heat((), [FUSED], TIME_S)
    program.close()
    assert raised.value.reason.code == TrialFailure.RAISED
    assert differing(before, everything(case)) == []


def test_the_workers_of_candidates_end_with_the_race(tmp_path: Path) -> None:
    case = Case()
    before = everything(case)
    processes = set(psutil.Process().children())  # helpers of earlier tests may still run
    two = (Asked(fix="loader-workers", options={"workers": "2"}),)
    (found,) = raced(race_of(case, tmp_path), two)
    assert found.is_applied
    assert found.ratio is not None
    started = set(psutil.Process().children()) - processes
    assert [one for one in started if "python" in one.name()] == []
    assert differing(before, everything(case)) == []

"""Trials of a step function in this process: each starts alike, and leaves nothing behind."""

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from ridgeline.measure.clock import Deadline
from ridgeline.optimization.function_bench import FunctionBench
from ridgeline.optimization.function_program import FunctionProgram, StepSubject
from ridgeline.optimization.function_state import SavedState
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied, Asked, FixTarget, Trial
from ridgeline.report.reasons import explain
from tests.unit.optimization.function_case import Case, Net, differing


def bench_of(case: Case, home: Path, step: Any = None, *, steps: int = 12) -> FunctionBench:
    step = step or case.step
    kept = SavedState(torch, (case.model, case.optimizer), step, case.loader)
    subject = StepSubject(torch, step, case.model, case.optimizer, case.loader)
    return FunctionBench(
        torch, subject, home, deadline=Deadline(60), steps=steps, watch=4, state=kept
    )


def asked(*names: str, **options: str) -> tuple[Asked, ...]:
    return tuple(Asked(fix=name, options=options) for name in names)


def losses(trial: Trial | None) -> list[float | None]:
    assert trial is not None
    return [step.loss for step in trial.watched]


def test_a_trial_leaves_everything_as_it_was(tmp_path: Path) -> None:
    case = Case()
    bench = bench_of(case, tmp_path)
    before = case.state()
    for fixes in ((), asked("fused-optimizer"), asked("channels-last", "set-to-none")):
        found = bench.trial(fixes)
        assert found.trial is not None, found.failure
        assert differing(before, case.state()) == []


def test_trials_start_from_one_state_and_see_the_same_data(tmp_path: Path) -> None:
    bench = bench_of(Case(), tmp_path)
    one, other = bench.trial(()).trial, bench.trial(()).trial
    assert one is not None
    assert other is not None
    assert one.watched == other.watched
    assert one.tensors == other.tensors
    assert one.evaluation == other.evaluation
    assert len(one.watched) == 4
    assert len(set(losses(one))) == 4
    assert [step.samples for step in one.watched] == [8] * 4


def test_the_schedule_that_the_step_closes_over_drives_the_optimizer(tmp_path: Path) -> None:
    trial = bench_of(Case(), tmp_path).trial(asked("fused-optimizer")).trial
    assert trial is not None
    rates = [step.learning_rate for step in trial.watched]
    assert rates[0] == pytest.approx(1e-3)
    assert rates[-1] < 1e-4  # type: ignore[operator]


def test_a_fused_update_is_applied_to_the_optimizer_that_exists(tmp_path: Path) -> None:
    bench = bench_of(Case(), tmp_path)
    plain, fused = bench.trial(()).trial, bench.trial(asked("fused-optimizer")).trial
    assert fused is not None
    option = because(Done.OPTION, call="AdamW", option="fused", value=True)
    assert fused.applied == (Applied(fix="fused-optimizer", targets=(FixTarget(done=option),)),)
    assert losses(fused) == pytest.approx(losses(plain), rel=1e-4)
    assert fused.settings == plain.settings  # type: ignore[union-attr]


def test_workers_are_given_to_a_copy_of_the_loader_and_the_order_stays(tmp_path: Path) -> None:
    case = Case()
    bench = bench_of(case, tmp_path)
    plain, workers = bench.trial(()).trial, bench.trial(asked("loader-workers", workers="2")).trial
    assert workers is not None
    option = because(Done.OPTION, call="DataLoader", option="num_workers", value=2)
    assert workers.applied == (Applied(fix="loader-workers", targets=(FixTarget(done=option),)),)
    assert losses(workers) == losses(plain)
    assert case.loader.num_workers == 0


def test_a_step_that_closes_over_model_and_optimizer_is_as_good(tmp_path: Path) -> None:
    case = Case()
    bench = bench_of(case, tmp_path, case.closed_over)
    before = case.state()
    found = bench.trial(asked("fused-optimizer")).trial
    assert found is not None
    assert found.applied
    assert differing(before, case.state()) == []


def test_what_the_step_itself_raises_is_the_users_to_see(tmp_path: Path) -> None:
    case = Case()

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        case.step(model, optimizer, batch)
        if case.taken > 4:
            raise LookupError("no such label")

    bench = bench_of(case, tmp_path, step)
    before = case.state()
    with pytest.raises(LookupError, match="no such label"):
        bench.trial(())
    assert differing(before, case.state()) == []


def test_a_step_that_raises_under_a_change_fails_that_trial_alone(tmp_path: Path) -> None:
    case = Case()

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        if optimizer.param_groups[0]["fused"]:
            raise ValueError("not fused, please\nand more")
        case.step(model, optimizer, batch)

    bench = bench_of(case, tmp_path, step)
    before = case.state()
    assert bench.trial(()).trial is not None
    found = bench.trial(asked("fused-optimizer"))
    assert found.trial is None
    assert explain(found.failure) == "ValueError: not fused, please"
    assert differing(before, case.state()) == []


def test_a_model_that_cannot_be_compiled_fails_that_trial_alone(tmp_path: Path) -> None:
    class Stubborn(Net):
        def forward(self, x: torch.Tensor) -> Any:
            if self._compiled_call_impl is not None:
                raise RuntimeError("I am not to be compiled")
            return super().forward(x)

    case = Case()
    case.model = Stubborn()
    case.optimizer = torch.optim.AdamW(case.model.parameters())
    bench = bench_of(case, tmp_path)
    assert bench.trial(()).trial is not None
    found = bench.trial(asked("compile"))
    assert "I am not to be compiled" in explain(found.failure)
    assert case.model._compiled_call_impl is None


def test_ctrl_c_in_the_middle_leaves_everything_as_it_was(tmp_path: Path) -> None:
    case = Case()
    numbers = itertools.count()

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        case.step(model, optimizer, batch)
        if next(numbers) == 6:
            os.kill(os.getpid(), signal.SIGINT)

    bench = bench_of(case, tmp_path, step)
    before = case.state()
    with pytest.raises(KeyboardInterrupt):
        bench.trial(asked("fused-optimizer"))
    assert differing(before, case.state()) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_loader_that_is_used_up_begins_again(tmp_path: Path) -> None:
    case = Case()
    case.loader = [torch.randn(8, 3, 6, 6) for _ in range(3)]
    found = bench_of(case, tmp_path).trial(asked("loader-workers"))
    assert found.trial is not None
    watched, settling, last = 4, 1, 1  # none of them is timed
    assert len(found.trial.step_ns) == 12 - watched - settling - last
    assert found.trial.not_applied[0].reason == because(Skip.NOT_A_LOADER, loader="list")


def test_perturbed_parameters_give_other_losses(tmp_path: Path) -> None:
    bench = bench_of(Case(), tmp_path)
    plain, moved = bench.trial(()).trial, bench.trial((), jitter=2.0**-11).trial
    assert moved is not None
    assert moved.jitter > 0
    assert losses(moved) != losses(plain)
    assert losses(moved) == pytest.approx(losses(plain), rel=0.05)


def test_time_is_asked_of_the_budget(tmp_path: Path) -> None:
    bench = bench_of(Case(), tmp_path)
    bench.trial(())
    assert bench.cost_s(()) > 0
    assert bench.cost_s(asked("tf32")) == bench.cost_s(())
    assert 0 < bench.left_s() < 60


def test_a_step_that_is_read_after_it_has_run_tells_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a captured one is: nothing is looked at while it runs."""
    case = Case()
    bench = bench_of(case, tmp_path)
    plain = bench.trial(()).trial

    def later(self: Any, fixes: Any, session: Any, kept: Any) -> Any:
        def run(batch: Any) -> None:
            with session.recorded():
                case.step(case.model, case.optimizer, batch)
            assert not session.watch.steps or session.watch.steps[-1].forwards == 1
            session.replayed()

        return run

    monkeypatch.setattr(FunctionProgram, "step_function", later)
    read = bench.trial(()).trial
    assert plain is not None
    assert read is not None
    # The schedule has moved on by then: such a step is not captured.
    told = [replace(step, learning_rate=None) for step in read.watched]
    assert told == [replace(step, learning_rate=None) for step in plain.watched]
    assert set(read.samples) == {8}
    assert [one.norm for one in read.tensors] == [one.norm for one in plain.tensors]


def test_a_model_trained_in_eval_mode_is_seen(tmp_path: Path) -> None:
    case = Case()
    case.model.eval()
    found = bench_of(case, tmp_path).trial(asked("channels-last")).trial
    assert found is not None
    assert [one.fix for one in found.applied] == ["channels-last"]
    assert found.tensors
    assert not case.model.training

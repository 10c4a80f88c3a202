"""`ridgeline.optimize(step, model=…, optimizer=…, loader=…)`: what it takes, refuses, and says."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ridgeline
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.fixes.fix import find_fix
from ridgeline.fixes.live_objects import loader_arguments, with_settings
from ridgeline.harness.capture import live
from ridgeline.harness.trials.loader_queue import in_rounds, made_ahead
from ridgeline.optimization import function
from ridgeline.optimization.function import Result, optimize
from ridgeline.optimization.function_program import Batches
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import SearchCode
from ridgeline.records.reason_codes import Skip
from ridgeline.records.run import OptimizerSeen
from tests.unit.optimization.function_case import Case, differing


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of as few steps as can be timed."""
    monkeypatch.setattr(function, "TRIAL_S", 0.01)


@pytest.mark.usefixtures("few")
def test_every_fix_has_a_rung_and_everything_is_restored() -> None:
    case = Case()
    before = case.state()
    found = optimize(
        case.step, model=case.model, optimizer=case.optimizer, loader=case.loader, budget=60,
        keep_exact=True, quiet=True,
    )  # fmt: skip
    assert differing(before, case.state()) == []
    assert live.session is None
    rungs = {rung.fix: rung for rung in found.rungs}
    assert rungs["fused-optimizer"].reason == because(SearchCode.NOT_EXACT, alters="rounding")
    assert rungs["whole-step-graph"].reason == because(Skip.NO_GPU)
    assert set(found.kept) <= {name for name, rung in rungs.items() if rung.alters == "nothing"}
    assert found.optimized.trials >= 3
    assert found.optimized.baseline_ms > 0
    assert "baseline" in str(found)
    assert "baseline" in found._repr_markdown_()


@pytest.mark.usefixtures("few")
def test_ctrl_c_reports_what_is_known() -> None:
    case, numbers = Case(), itertools.count()
    before = case.state()

    def step(batch: Any) -> Any:
        if next(numbers) == 90:  # 80 are looked at: in a trial
            os.kill(os.getpid(), signal.SIGINT)
        return case.step(case.model, case.optimizer, batch)

    found = optimize(
        step, model=case.model, optimizer=case.optimizer, loader=case.loader, quiet=True
    )
    assert found.optimized.interrupted
    assert next(numbers) < 100  # not one more trial
    assert differing(before, case.state()) == []


def test_a_later_profile_of_the_users_still_names_modules(tmp_path: Path) -> None:
    code = """
        import sys, tempfile, pathlib, torch
        from torch import nn
        from ridgeline.optimization.function import diagnose_step
        from ridgeline.optimization.function_state import SavedState
        from ridgeline.optimization.function_program import StepSubject
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def step(batch):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        batches = [torch.ones(2, 4)]
        kept = SavedState(torch, (model, optimizer), step, batches)
        subject = StepSubject(torch, step, model, optimizer, batches)
        found = diagnose_step(torch, subject, pathlib.Path(sys.argv[1]), kept)
        assert found.ground.trains and found.step_ms > 0
        with torch.profiler.profile(with_stack=True) as profile:
            model(batches[0])
        profile.export_chrome_trace(sys.argv[1] + "/trace.json")
    """
    typed = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    subprocess.run(typed, check=True, capture_output=True, timeout=120)
    assert "nn.Module: Linear" in (tmp_path / "trace.json").read_text()


def test_what_the_step_raises_comes_through() -> None:
    case = Case()
    before = case.state()

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        case.step(model, optimizer, batch)
        raise LookupError("no such label")

    with pytest.raises(LookupError, match="no such label"):
        optimize(step, model=case.model, optimizer=case.optimizer, loader=case.loader, quiet=True)
    assert differing(before, case.state()) == []
    assert live.session is None


def given(**other: Any) -> dict[str, Any]:
    case = Case()
    return {
        "step": case.step, "model": case.model, "optimizer": case.optimizer,
        "loader": case.loader, "quiet": True, **other,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"step": lambda model, batch: None}, "step takes model, batch"),
        ({"step": lambda: None}, "step takes nothing"),
        ({"step": 3}, "step is a int, not a function"),
        ({"model": lambda x: x}, "model is a function, not an nn.Module"),
        ({"model": nn.ReLU()}, "the model has no parameters"),
        ({"model": nn.LazyLinear(3)}, "the model has lazy layers"),
        ({"optimizer": 3}, "optimizer is a int, not one of torch.optim"),
        ({"loader": []}, "the loader has no batches"),
        ({"loader": 3}, "loader is a int"),
        ({"loader": iter([1])}, "which can be gone through once"),
        ({"loader": torch.utils.data.DataLoader([])}, "the loader has no batches"),
        ({"budget": "soon"}, "budget 'soon' is not a time"),
        ({"budget": 0}, "budget 0 is not a time"),
        ({"goal": "beauty"}, "goal 'beauty' is none of"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(other: dict[str, Any], sentence: str) -> None:
    told = given(**other)
    with pytest.raises(UsageError) as raised:
        optimize(told.pop("step"), **told)
    assert sentence in raised.value.message
    assert "\n" not in raised.value.message


def test_inside_a_run_it_says_so(tmp_path: Path) -> None:
    told = given()
    with (
        ridgeline.profile(quiet=True, runs_dir=tmp_path),
        pytest.raises(RidgelineError, match="another run records"),
    ):
        optimize(told.pop("step"), **told)


def test_what_needs_a_process_of_its_own_says_so() -> None:
    ground = Ground(device="cuda", optimizers=(OptimizerSeen(name="AdamW"),))
    names = ("expandable-segments", "affinity", "whole-step-graph", "fused-optimizer")
    here = {
        name: function._for_function(find_fix(name), because(Skip.NO_WRITTEN_ATTENTION))
        for name in names
    }
    needs = because(Skip.NEEDS_A_PROCESS)
    assert here["expandable-segments"].reason_to_skip(ground) == needs
    held = Ground(findings=("affinity",), processors=8)
    assert here["affinity"].reason_to_skip(held) == needs
    assert here["whole-step-graph"].reason_to_skip(ground) is None
    assert here["fused-optimizer"].reason_to_skip(ground) is None


def test_optimize_is_one_of_ten_names() -> None:
    assert ridgeline.optimize is optimize
    assert "optimize" in ridgeline.__all__
    assert len(ridgeline.__all__) == 10
    assert callable(ridgeline.quick_profile)
    assert Result.__module__ == "ridgeline.optimization.function"


def test_a_copy_of_a_loader_has_other_settings_and_the_same_order() -> None:
    case = Case()
    loader = case.loader
    before = loader_arguments(torch, loader)
    other = with_settings(loader, before, {**before, "num_workers": 2, "batch_size": 16})
    assert (other.num_workers, other.prefetch_factor, loader.num_workers) == (2, 2, 0)
    assert made_ahead(other.num_workers, other.prefetch_factor) == 8
    assert made_ahead(loader.num_workers, loader.prefetch_factor) == 0
    batches = Batches(other)
    sizes = [len(next(batches)) for _ in range(4)]
    batches.close()
    assert sizes == [16, 16, 16, 16]
    with pytest.raises(ValueError, match="shuffle"):
        with_settings(loader, before, {**before, "shuffle": True})


def test_steps_that_workers_feed_are_averaged_over_their_rounds() -> None:
    assert in_rounds([8, 26, 8, 26, 8, 26], 2) == (17, 17, 17, 17, 17)
    assert in_rounds([5, 6, 7], 0) == (5, 6, 7)
    assert in_rounds([4, 4, 8, 8], 16) == (4, 6, 8)
    assert in_rounds([], 4) == ()

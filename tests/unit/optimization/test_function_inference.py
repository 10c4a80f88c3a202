"""A step function that does not train: `ridgeline.optimize(step, model=…, loader=…)`. What it
computes is what its model and the function return."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ridgeline.equality.trials.parity import compare
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.measure.clock import Deadline
from ridgeline.optimization import function
from ridgeline.optimization.candidates import allowed_fixes
from ridgeline.optimization.function import optimize
from ridgeline.optimization.function_bench import FunctionBench
from ridgeline.optimization.function_program import StepSubject
from ridgeline.optimization.function_state import SavedState
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Skip
from ridgeline.records.trial import Asked, Trial


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


class Serving:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Scores().eval()
        self.batches = [torch.randn(4, 32) for _ in range(8)]
        self.factor = 1.0
        """Of what the function makes of the model's output."""

    def step(self, model: Any, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(batch).softmax(-1) * self.factor  # type: ignore[no-any-return]

    def trial(self, home: Path, *fixes: str) -> Trial:
        subject = StepSubject(torch, self.step, self.model, None, self.batches)
        kept = SavedState(torch, (self.model, None), self.step, self.batches)
        bench = FunctionBench(
            torch, subject, home, deadline=Deadline(60), steps=12, watch=4, state=kept
        )
        found = bench.trial(tuple(Asked(fix=name) for name in fixes))
        assert found.trial is not None, found.failure
        return found.trial


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of as few steps as can be timed."""
    monkeypatch.setattr(function, "TRIAL_S", 0.01)


def test_what_model_and_function_return_is_seen_step_by_step(tmp_path: Path) -> None:
    plain = Serving().trial(tmp_path)
    assert [len(step.outputs) for step in plain.watched] == [2] * 4
    assert len({step.outputs[0].norm for step in plain.watched}) == 4
    assert [step.backwards for step in plain.watched] == [0] * 4
    assert plain.step_ns


def test_the_same_outputs_are_equal_and_others_are_not(tmp_path: Path) -> None:
    serving = Serving()
    plain, again = serving.trial(tmp_path), serving.trial(tmp_path)
    quiet = serving.trial(tmp_path, "inference-mode")
    assert compare([plain, again], quiet, alters="nothing").equality == "equal"
    serving.factor = 1.1  # after the model, where no module sees it
    other = compare([plain, again], serving.trial(tmp_path), alters="rounding")
    assert other.equality == "differs", other.why


@pytest.mark.usefixtures("few")
def test_the_search_compares_outputs_and_leaves_the_model_as_it_was() -> None:
    serving = Serving()
    before = {name: value.clone() for name, value in serving.model.state_dict().items()}
    found = optimize(
        serving.step, model=serving.model, loader=serving.batches, budget=40, keep_exact=True,
        quiet=True,
    )  # fmt: skip
    rungs = {rung.fix: rung for rung in found.rungs}
    assert rungs["fused-optimizer"].status == "not tried"
    assert found.confirmed == (found.total is not None and found.total.confirmed)
    assert rungs["checkpointing"].reason == because(Skip.DOES_NOT_TRAIN)
    assert found.optimized.baseline_ms > 0
    after = serving.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not serving.model.training


def test_a_step_that_trains_must_name_its_optimizer() -> None:
    model = Scores()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    with pytest.raises(UsageError, match="the step trains, with SGD"):
        optimize(step, model=model, loader=[torch.randn(4, 32)] * 4, quiet=True)


def test_a_step_that_trains_by_hand_is_no_inference() -> None:
    model = Scores()

    def step(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.sub_(0.1 * parameter.grad)
            parameter.grad = None

    with pytest.raises(UsageError, match="changes the model's parameters") as told:
        optimize(step, model=model, loader=[torch.randn(4, 32)] * 4, quiet=True)
    assert told.value.__notes__ == ["train with one of torch.optim, and say optimizer="]


def test_a_step_that_calls_no_module_is_refused() -> None:
    serving = Serving()
    with pytest.raises(RidgelineError, match=r"no step was seen|called no module"):
        optimize(lambda batch: batch * 2, model=serving.model, loader=serving.batches, quiet=True)


def test_a_step_takes_what_is_given() -> None:
    serving = Serving()

    def three(model: Any, optimizer: Any, batch: Any) -> None: ...

    with pytest.raises(UsageError, match="step takes model, optimizer, batch") as told:
        optimize(three, model=serving.model, loader=serving.batches)
    assert "one that trains needs optimizer=" in str(told.value.hint)
    optimizer = torch.optim.SGD(serving.model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="step takes model, batch"):
        optimize(serving.step, model=serving.model, optimizer=optimizer, loader=serving.batches)


def test_what_alters_results_is_allowed_by_name() -> None:
    found = allowed_fixes(["int8-dynamic", " fp8-linear", "tf32", "int8-dynamic"])
    assert found.names == ("int8-dynamic", "fp8-linear")
    assert found.needless[0].startswith("allow tf32: it alters rounding alone")
    with pytest.raises(UsageError, match="there is no such fix"):
        allowed_fixes(["magic"])
    with pytest.raises(UsageError, match="batch=True"):
        allowed_fixes(["larger-batch"])
    serving = Serving()
    with pytest.raises(UsageError, match="one or the other"):
        optimize(
            serving.step, model=serving.model, loader=serving.batches, keep_exact=True,
            allow="int8-dynamic",
        )  # fmt: skip

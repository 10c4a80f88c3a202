"""Plans for a training step within a budget of memory, counted and run on small models."""

from pathlib import Path

import pytest
import torch
from torch import nn

from ridgeline.cost.counting import count
from ridgeline.cost.study.planning import checkpointed_block, under
from ridgeline.cost.study.running import Options
from ridgeline.cost.study.study import study
from ridgeline.records.memory_plan import MemoryPlan, PlannedFit, Unverified
from ridgeline.records.model import ModelReport
from ridgeline.report.views.memory_plan import plan_code

MODEL = """
import torch
from torch import nn

def build():
    blocks = (nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6))
    return nn.Sequential(*blocks), torch.randn(512, 64)

def skipping():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
            self.deep = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
            self.up = nn.Sequential(nn.Conv2d(32, 16, 3, padding=1), nn.ReLU())

        def forward(self, x):
            fine = self.down(x)
            return self.up(torch.cat([fine, self.deep(fine)], 1))

    return Net(), torch.randn(4, 3, 32, 32)
"""
MIB = 2**20


def studied(tmp_path: Path, target: str, budget: int, timed: bool = False) -> ModelReport:
    (tmp_path / "net.py").write_text(MODEL)
    options = Options(training=True, fit_bytes=budget, timed=timed, budget_s=0.05)
    return study(f"{tmp_path}/net.py:{target}", options)


def planned(tmp_path: Path, target: str, budget: int, timed: bool = False) -> PlannedFit:
    found = studied(tmp_path, target, budget, timed).planned
    assert found is not None
    return found


def test_a_step_that_fits_needs_no_plan(tmp_path: Path) -> None:
    answer = planned(tmp_path, "build", 100 * MIB)
    assert answer.fits
    assert answer.plans == ()
    assert [b.path for b in answer.blocks] == ["0", "1", "2", "3", "4", "5"]
    # Linear keeps its input, GELU its own input and the second Linear GELU's output.
    assert all(b.kept_bytes >= 2 * 512 * 256 * 4 for b in answer.blocks)
    assert all(b.saved_bytes == 2 * 512 * 256 * 4 for b in answer.blocks)


def test_a_plan_fits_when_it_runs_and_is_as_large_as_predicted(tmp_path: Path) -> None:
    needed = planned(tmp_path, "build", 100 * MIB).peak_bytes
    kept = 6 * (2 * 512 * 256 * 4)
    answer = planned(tmp_path, "build", needed - kept // 2, timed=True)
    first = answer.plans[0]
    assert first.changes == "nothing"
    assert first.predicted_peak_bytes <= answer.budget_bytes
    assert first.measured_peak_bytes == pytest.approx(first.predicted_peak_bytes, rel=0.03)
    assert first.measured_peak_bytes is not None
    assert first.measured_peak_bytes <= answer.budget_bytes
    assert first.unverified is None


def test_where_nothing_fits_the_smallest_peak_is_told(tmp_path: Path) -> None:
    answer = planned(tmp_path, "build", 1 * MIB)
    assert answer.plans == ()
    parameters = 6 * (64 * 256 * 2 + 256 + 64) * 4
    # The 8-bit optimizer is tried too: its two moments take half of the parameters.
    assert 2.5 * parameters < answer.smallest_peak_bytes < answer.peak_bytes


def test_without_times_nothing_is_run(tmp_path: Path) -> None:
    needed = planned(tmp_path, "build", 100 * MIB).peak_bytes
    answer = planned(tmp_path, "build", needed - MIB)
    assert answer.times_source == "floors"
    assert {p.unverified for p in answer.plans} == {Unverified.NOT_ASKED}


def test_blocks_that_share_tensors_are_told_from_a_chain(tmp_path: Path) -> None:
    report = studied(tmp_path, "skipping", 100 * MIB)
    assert report.planned is not None
    assert report.planned.has_shared_tensors
    smaller = planned(tmp_path, "skipping", report.planned.peak_bytes * 3 // 4)
    assert smaller.plans
    assert all(p.predicted_peak_bytes <= smaller.budget_bytes for p in smaller.plans)


def test_the_code_of_a_plan_runs_and_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(4))
    model = nn.Sequential(*blocks)
    inputs, targets = torch.randn(6, 8), torch.randn(6, 8)
    loss_of = nn.functional.mse_loss
    loss_of(model(inputs), targets).backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    plan = MemoryPlan(
        checkpointed=("0", "1", "3"), micro_batches=3, micro_batch=2, optimizer="sgd",
        predicted_peak_bytes=0, predicted_slowdown=1.0,
    )  # fmt: skip
    exec(
        plan_code(plan), {"model": model, "inputs": inputs, "targets": targets, "loss_of": loss_of}
    )
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)  # type: ignore[arg-type]


def test_running_statistics_count_a_checkpointed_batch_once() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    x = torch.randn(2, 3, 8, 8)
    before = [b.clone() for b in block.buffers()]
    block(x).sum().backward()
    expected = [b.clone() for b in block.buffers()]
    gradients = [p.grad.clone() for p in block.parameters() if p.grad is not None]
    with torch.no_grad():
        for buffer, value in zip(block.buffers(), before, strict=True):
            buffer.copy_(value)
    block.zero_grad()
    block.forward = checkpointed_block(block)  # type: ignore[method-assign]
    block(x).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(block.buffers(), expected, strict=True))
    found = [p.grad for p in block.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(found, gradients, strict=True) if a is not None)


def test_a_model_is_as_before_after_a_plan_was_on_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with under(model, ("0",), "bfloat16"):
        count(model, (torch.randn(2, 4),), training=True)
        assert "forward" in model[0].__dict__
    assert "forward" not in model[0].__dict__
    assert "forward" not in model.__dict__

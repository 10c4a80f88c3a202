"""Collecting evidence leaves no trace: not in tensors, gradients, optimizers or random numbers."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from verdict_on import workload

from ridgeline.equality.calls.collection import collect
from ridgeline.harness.usercode.workload import Workload


def draws() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def collected(function: Callable[..., Any], *args: Any) -> None:
    collect(workload(function, *args), seed=3, as_baseline=True)


def test_the_users_random_numbers_go_on_as_they_would_have() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    collected(lambda: torch.randn(8) * random.random() * np.random.rand())
    assert draws() == expected


def test_a_training_step_leaves_the_model_where_it_stood() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    x, steps = torch.randn(16, 8), 0
    model[0].weight.grad = torch.full((8, 8), 3.0)

    def step() -> float:
        nonlocal steps
        steps += 1
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        return loss.item()

    before = {name: value.clone() for name, value in model.state_dict().items()}
    pointers = [p.data_ptr() for p in model.parameters()]
    kept, gradient, seen = x.clone(), model[0].weight.grad, scheduler.last_epoch
    collected(step)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
        assert value.dtype == before[name].dtype
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert model[0].weight.grad is gradient
    assert torch.equal(gradient, torch.full((8, 8), 3.0))
    assert all(p.grad is None for p in list(model.parameters())[1:])
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert scheduler.last_epoch == seen
    assert scaler.get_scale() == 8.0
    assert steps == 0
    assert torch.equal(x, kept)


def test_inputs_that_the_function_changes_come_back() -> None:
    x, array = torch.randn(8), np.arange(8.0)
    kept = x.clone()

    def spoil(x: Tensor, array: Any) -> Tensor:
        array += 1
        return x.zero_()

    collected(spoil, x, array)
    assert torch.equal(x, kept)
    assert array.tolist() == list(range(8))


def test_state_comes_back_after_a_failure_too_and_the_failure_is_the_functions_own() -> None:
    x, calls = torch.ones(4), 0

    def breaking() -> Tensor:
        nonlocal calls
        calls += 1
        x.add_(1)
        if calls == 2:
            raise KeyError("mine")
        return x.clone()

    with pytest.raises(KeyError, match="mine"):
        collected(breaking)
    assert torch.equal(x, torch.ones(4))


def test_a_function_that_breaks_only_in_extra_calls_gives_evidence_and_reasons() -> None:
    x, calls = torch.ones(4), iter(range(1000))

    def later() -> Tensor:
        if next(calls) >= 3:
            raise RuntimeError("enough")
        return x * 2

    evidence = collect(workload(later), seed=3, as_baseline=True)
    assert len(evidence.outputs) == 3
    assert evidence.nudged.why == "RuntimeError: enough"
    assert "enough" in evidence.work_why
    assert "enough" in evidence.reference.why_not


def test_nothing_runs_before_the_cold_call() -> None:
    order = []

    def first_is_slow() -> Tensor:
        order.append(len(order))
        return torch.ones(1)

    evidence = collect(Workload(name="x", function=first_is_slow), seed=3, as_baseline=False)
    assert len(evidence.call_ns) == 3
    assert order[:3] == [0, 1, 2]


def test_generators_of_the_users_own_go_on_as_they_would_have() -> None:
    own, numpys = torch.Generator().manual_seed(4), np.random.default_rng(4)
    expected = (torch.rand(2, generator=own).tolist(), numpys.random())
    own, numpys = torch.Generator().manual_seed(4), np.random.default_rng(4)
    collected(lambda: torch.rand(3, generator=own) * numpys.random())
    assert (torch.rand(2, generator=own).tolist(), numpys.random()) == expected


def test_tensors_that_share_memory_are_changed_and_put_back_once() -> None:
    x = torch.randn(6, 4)
    turned, wide, part = x.t(), x[:1].expand(5, 4), x[2:]
    kept = x.clone()
    collected(lambda: (turned @ x, wide.sum(), part * 2))
    assert torch.equal(x, kept)
    assert turned.data_ptr() == x.data_ptr()


def test_a_graph_kept_by_the_user_still_runs_backward() -> None:
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * weight).sum()
    collected(lambda: loss.backward(retain_graph=True))
    weight.grad = None
    loss.backward()
    assert torch.equal(weight.grad, torch.full((4,), 2.0))  # type: ignore[arg-type]


def test_inference_tensors_and_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(8)
    kept = x.clone()

    @torch.inference_mode()
    def call() -> Tensor:
        return x.add_(1) * 2

    collected(call)
    assert torch.equal(x, kept)


def test_default_dtype_and_modes_are_as_before() -> None:
    x = torch.randn(8)
    before = (torch.get_default_dtype(), torch.is_grad_enabled())
    collected(lambda: x.sin())
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before
    assert torch._C._len_torch_dispatch_stack() == 0

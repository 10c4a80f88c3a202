"""The float64 reference: made where it can be, believed only where it deserves to be."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from verdict_on import workload

from ridgeline.equality.calls.collection import collect
from ridgeline.equality.calls.evidence import Reference

torch.manual_seed(0)
X, W = torch.randn(32, 64), torch.randn(64, 32)


def reference(function: Any, *args: Any) -> Reference:
    return collect(workload(function, *args), seed=1, as_baseline=True).reference


def values(made: Reference) -> Tensor:
    assert made.why_not == ""
    found = made.outputs[0].leaves[0].values
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_the_same_program_in_float64(dtype: torch.dtype) -> None:
    x, w = X.to(dtype), W.to(dtype)
    expected = x.double() @ w.double()
    assert torch.equal(values(reference(lambda: x @ w)), expected)
    assert torch.equal(values(reference(lambda x: x @ w, x)), expected)


def test_a_dtype_asked_for_in_the_code_is_widened_too() -> None:
    def asking() -> Tensor:
        ones = torch.ones(64, 32, dtype=torch.float32)
        return (X.to(torch.float32) @ ones).float() + torch.zeros(1, dtype=torch.float32)

    assert torch.equal(values(reference(asking)), X.double() @ torch.ones(64, 32).double())


def test_what_comes_out_of_a_loader_is_widened_on_its_way() -> None:
    conv = nn.Conv2d(3, 4, 3)
    data = torch.utils.data.TensorDataset(torch.randn(4, 3, 8, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=4)

    def call() -> Tensor:
        for (batch,) in loader:
            return conv(batch)
        raise AssertionError

    assert values(reference(call)).dtype is torch.float64


def test_autocast_does_not_reach_float64() -> None:
    def mixed() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(X, W.t())

    made = reference(mixed)
    assert torch.allclose(values(made), X.double() @ W.double())


def test_a_training_steps_state_has_one_too() -> None:
    model = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()

    evidence = collect(workload(step), seed=1, as_baseline=True)
    assert evidence.reference.why_not == ""
    assert all(leaf.dtype == "float64" for leaf in evidence.reference.state)
    assert model.weight.dtype is torch.float32


def test_compiled_code_is_run_as_it_was_written() -> None:
    calls = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(graph)
        return graph

    compiled = torch.compile(lambda: X @ W, backend=backend)
    assert values(reference(compiled)).dtype is torch.float64
    assert len(calls) == 1


def test_other_random_numbers_in_float64_are_no_reference() -> None:
    made = reference(lambda: X + torch.randn(32, 64))
    assert "more than rounding" in made.why_not


def test_a_function_that_cannot_run_in_float64_has_none() -> None:
    def picky() -> Tensor:
        if X.dtype is not torch.float32:
            raise TypeError("float32 only")
        return X * 2

    assert reference(picky).why_not == "TypeError: float32 only"


def test_what_leaves_torch_and_comes_back_has_none() -> None:
    made = reference(lambda: torch.from_numpy((X.numpy() * 2).astype("float32")))
    assert "not float64" in made.why_not


def test_float64_needs_none() -> None:
    x = X.double()
    assert "already computes in float64" in reference(lambda: x * 2).why_not

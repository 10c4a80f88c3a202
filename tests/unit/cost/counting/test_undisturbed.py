"""Counting leaves the user's model, and torch itself, as they were: after success and failure."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ridgeline.cost.counting import count
from tests.models.row import EVERYWHERE, Backend

everywhere = pytest.mark.parametrize("backend", EVERYWHERE)


class Eventful(nn.Module):
    """Dropout, batch statistics and attention: randomness, buffers and a dispatch rule at once."""

    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        self.fail = fail
        self.norm, self.drop, self.linear = nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.norm(x)).view(1, 1, -1, 8)
        y = self.linear(F.scaled_dot_product_attention(y, y, y))
        if self.fail:
            raise ValueError("on purpose")
        return y


def photograph(model: nn.Module) -> dict[str, Any]:
    return {
        "values": {k: v.clone() for k, v in model.state_dict().items()},
        "objects": [id(t) for t in (*model.parameters(), *model.buffers())],
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "wants": [p.requires_grad for p in model.parameters()],
        "random": torch.random.get_rng_state(),
        "fastpath": torch.backends.mha.get_fastpath_enabled(),
        "dtype": torch.get_default_dtype(),
        "grad enabled": torch.is_grad_enabled(),
        "warnings": list(warnings.filters),
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for key, value in before.pop("values").items():
        assert torch.equal(value, after["values"][key]), key
    after.pop("values")
    assert torch.equal(before.pop("random"), after.pop("random"))
    for old, new in zip(before.pop("grads"), after.pop("grads"), strict=True):
        assert (old is None) == (new is None)
        assert old is None or torch.equal(old, new)
    assert before == after


def prepared(fail: bool = False) -> Eventful:
    """Mixed modes, a gradient on one parameter, another frozen."""
    model = Eventful(fail)
    model.drop.eval()
    model.linear.weight.grad = torch.full((8, 8), 3.0)
    model.linear.bias.requires_grad_(False)
    return model


@everywhere
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_restored_after_counting(backend: Backend, training: bool) -> None:
    model, x = prepared(), torch.randn(16, 8)
    kept = x.clone()
    before = photograph(model)
    count(model, (x,), backend=backend, training=training, optimizer="adamw" if training else "")
    assert_same(before, photograph(model))
    assert torch.equal(x, kept)
    assert x.grad is None


@everywhere
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_restored_when_it_raises(backend: Backend, training: bool) -> None:
    model, x = prepared(fail=True), torch.randn(16, 8)
    before = photograph(model)
    with pytest.raises(ValueError, match="on purpose"):
        count(model, (x,), backend=backend, training=training)
    assert_same(before, photograph(model))


@pytest.mark.parametrize("fail", [True, False])
def test_attention_on_meta_dispatches_as_torch_does_again(fail: bool) -> None:
    def operators() -> list[str]:
        from torch.utils._python_dispatch import TorchDispatchMode

        class Names(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        seen: list[str] = []
        q = torch.empty(1, 2, 8, 4, device="meta")
        with Names():
            F.scaled_dot_product_attention(q, q, q)
        return seen

    before = operators()
    model = prepared(fail)
    if fail:
        with pytest.raises(ValueError, match="on purpose"):
            count(model, (torch.randn(16, 8),), backend="meta")
    else:
        count(model, (torch.randn(16, 8),), backend="meta")
    assert operators() == before


def test_the_model_still_trains_afterwards() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), torch.randn(4, 8)
    count(model, (x,), training=True, optimizer="sgd")
    model(x).sum().backward()
    assert all(p.grad is not None and type(p.grad) is Tensor for p in model.parameters())


def test_the_result_is_the_same_after_counting() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    expected = model(x)
    for backend in EVERYWHERE:
        count(model, (x,), backend=backend, training=True)
    assert torch.equal(model(x), expected)


class RemembersMask(nn.Module):
    """Makes a constant when first called and keeps it, as rotary tables and masks often are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.ones(8)
        return self.linear(x) * self.mask


@pytest.mark.parametrize("backend", ["fake", "meta"])
def test_a_tensor_the_model_keeps_for_itself_is_real_afterwards(backend: Backend) -> None:
    model, x = RemembersMask(), torch.randn(4, 8)
    count(model, (x,), backend=backend)
    assert type(model(x)) is Tensor
    assert not model(x).is_meta


class RemembersElsewhere(RemembersMask):
    """Keeps it one level deeper: in a dict, a list, or an object of its own."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.table: dict[int, Tensor] = {}
        self.tables: list[Tensor] = []
        self.state = SimpleNamespace(mask=None)

    def forward(self, x: Tensor) -> Tensor:
        if self.place == "dict":
            return self.linear(x) * self.table.setdefault(8, torch.ones(8))
        if self.place == "list":
            self.tables = self.tables or [*self.tables, torch.ones(8)]
            self.tables[0] = self.tables[0] * 1
            return self.linear(x) * self.tables[0]
        if self.state.mask is None:
            self.state.mask = torch.ones(8)
        return self.linear(x) * self.state.mask


@pytest.mark.parametrize("place", ["dict", "list", "object"])
@pytest.mark.parametrize("backend", ["fake", "meta"])
def test_a_tensor_kept_deeper_is_real_afterwards_too(backend: Backend, place: str) -> None:
    model, x = RemembersElsewhere(place), torch.randn(4, 8)
    count(model, (x,), backend=backend)
    assert (model.table, model.tables, model.state.mask) == ({}, [], None)
    assert type(model(x)) is Tensor
    assert not model(x).is_meta


class CountsItsCalls(nn.Module):
    """Puts a new tensor in its buffer instead of writing to the old one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x * self.calls


@everywhere
def test_a_buffer_that_forward_replaces_comes_back(backend: Backend) -> None:
    model = CountsItsCalls()
    buffer = model.calls
    count(model, (torch.ones(2),), backend=backend)
    assert model.calls is buffer
    assert float(model.calls) == 0

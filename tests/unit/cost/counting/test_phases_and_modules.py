"""Whose work it was: the module, in forward and in backward, however it was called."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ridgeline.cost.counting import count
from ridgeline.cost.counting.counter import display_path
from ridgeline.records.cost import Cost, Phase, Totals
from tests.models.row import EVERYWHERE, Apply, Backend

everywhere = pytest.mark.parametrize("backend", EVERYWHERE)


def macs(cost: Cost, phase: Phase) -> dict[str, int]:
    """MACs by module, whatever has none left out."""
    found = {m.path: m.phases.get(phase, Totals()).macs for m in cost.modules}
    return {path: n for path, n in found.items() if n}


class Twice(nn.Module):
    """A module called twice, with a functional product in between."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.zeros(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(F.linear(self.shared(x), self.weight))


class AroundHooks(nn.Module):
    """Calls .forward() itself: no hook fires, so the work is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner.forward(x))


@everywhere
def test_a_reused_module_owns_both_calls_and_the_function_between_is_its_parents(
    backend: Backend,
) -> None:
    cost = count(Twice(), (torch.zeros(2, 4),), backend=backend, training=True).cost
    one = 2 * 4 * 4
    assert macs(cost, "forward") == {"": 3 * one, "shared": 2 * one}
    # the first call's input needs no gradient: 1 product, then 2 and 2
    assert macs(cost, "backward") == {"": 5 * one, "shared": 3 * one}
    assert {m.path: m.calls for m in cost.modules} == {"": 1, "shared": 2}


@everywhere
def test_a_forward_called_by_name_is_the_callers_work(backend: Backend) -> None:
    cost = count(AroundHooks(), (torch.zeros(2, 4),), backend=backend, training=True).cost
    assert macs(cost, "forward") == {"": 64, "outer": 32}
    assert macs(cost, "backward") == {"": 96, "outer": 64}
    assert {m.path: m.calls for m in cost.modules} == {"": 1, "inner": 0, "outer": 1}


@everywhere
def test_work_adds_up_along_nested_paths(backend: Backend) -> None:
    model = nn.Sequential()
    model.add_module("block", nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2))))
    model.add_module("head", nn.Linear(2, 1))
    cost = count(model, (torch.zeros(3, 4),), backend=backend, training=True).cost
    forward = {"": 48 + 24 + 6, "block": 72, "block.0": 48, "block.1": 24, "block.1.0": 24}
    assert macs(cost, "forward") == {**forward, "head": 6}
    backward = {"": 48 + 48 + 12, "block": 96, "block.0": 48, "block.1": 48, "block.1.0": 48}
    assert macs(cost, "backward") == {**backward, "head": 12}


def test_every_module_is_listed_with_its_type_even_if_it_never_ran() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model.unused = nn.Linear(2, 2)
    model.forward = lambda x: model[0](x)  # type: ignore[method-assign]
    cost = count(model, (torch.zeros(1, 4),)).cost
    assert {m.path: m.type for m in cost.modules} == {
        "": "Sequential", "0": "Linear", "unused": "Linear",
    }  # fmt: skip
    assert [m.calls for m in cost.modules if m.path == "unused"] == [0]


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_belongs_to_the_module_run_again(reentrant: bool) -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, self.first(x), use_reentrant=reentrant)

    cost = count(Kept(), (torch.zeros(2, 4),), training=True).cost
    assert macs(cost, "recompute") == {"": 32, "block": 32, "block.0": 32}
    assert macs(cost, "backward") == {"": 96, "first": 32, "block": 64, "block.0": 64}


class Nested(nn.Module):
    """A checkpoint inside a checkpoint, each around a layer of 32 MACs."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(4, 4)
        self.outer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        def both(y: Tensor) -> Tensor:
            return checkpoint(self.inner, self.outer(y), use_reentrant=self.reentrant)

        return checkpoint(both, self.first(x), use_reentrant=self.reentrant)


@everywhere
def test_a_checkpoint_in_a_checkpoint_is_run_again_once(backend: Backend) -> None:
    """The outer stops early where the inner's input is known, so each layer runs once more."""
    cost = count(Nested(False), (torch.zeros(2, 4),), backend=backend, training=True).cost
    assert macs(cost, "forward")[""] == 96
    assert {p: n for p, n in macs(cost, "recompute").items() if "." not in p} == {
        "": 64, "outer": 32, "inner": 32,
    }  # fmt: skip
    assert macs(cost, "backward")[""] == 32 + 64 + 64


@everywhere
def test_nested_reentrant_checkpoints_rerun_the_innermost_twice(backend: Backend) -> None:
    """Once without gradients, as part of the outer block, and once more with."""
    cost = count(Nested(True), (torch.zeros(2, 4),), backend=backend, training=True).cost
    assert macs(cost, "forward")[""] == 96
    assert {p: n for p, n in macs(cost, "recompute").items() if "." not in p} == {
        "": 96, "outer": 32, "inner": 64,
    }  # fmt: skip
    assert macs(cost, "backward")[""] == 32 + 64 + 64


@everywhere
def test_functions_checkpointed_within_each_other_are_recomputed_too(backend: Backend) -> None:
    """No module is called, and the innermost runs without gradients the first time again."""

    def inner(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w)

    def outer(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(inner, inner(x, w), w, use_reentrant=True)

    model = Apply(lambda x, w: checkpoint(outer, x @ w, w, use_reentrant=True), torch.zeros(4, 4))
    cost = count(model, (torch.zeros(2, 4),), backend=backend, training=True).cost
    found = [cost.phases[p].macs for p in ("forward", "recompute", "backward")]
    assert found == [96, 96, 32 + 64 + 64]


class RunAgain(torch.autograd.Function):
    """A product that keeps its operands and is done again to go back, as hand-written
    checkpointing does it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch.enable_grad():
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            y = x @ w
        return torch.autograd.grad(y, (x, w), grad)


@everywhere
def test_a_custom_function_that_runs_its_forward_again_recomputes(backend: Backend) -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.weight = nn.Linear(4, 4), nn.Parameter(torch.zeros(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return RunAgain.apply(self.first(x), self.weight)

    cost = count(Custom(), (torch.zeros(2, 4),), backend=backend, training=True).cost
    found = [cost.phases[p].macs for p in ("forward", "recompute", "backward")]
    assert found == [64, 32, 64 + 32]


class Force(nn.Module):
    """An energy and its gradient by position, as models of molecules return it."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return force


@everywhere
@pytest.mark.parametrize("training", [True, False])
def test_a_gradient_taken_inside_forward_is_forward(training: bool, backend: Backend) -> None:
    """24 MACs for the energy and 24 for its gradient, a product of ones with the weight: going back
    from that gives the weight one gradient, and ones need none."""
    cost = count(Force(), (torch.zeros(2, 4),), backend=backend, training=training).cost
    found = [cost.phases[p].macs for p in ("forward", "recompute", "backward")]
    assert found == [48, 0, 24 if training else 0]


def test_a_module_made_on_the_fly_works_for_its_caller() -> None:
    class Making(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return nn.ReLU()(x @ self.weight)

    cost = count(Making(), (torch.zeros(2, 4),), training=True).cost
    assert [m.path for m in cost.modules] == [""]
    assert macs(cost, "forward") == {"": 32}


def test_training_without_a_backward_gives_a_note() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    cost = count(Detached(), (torch.zeros(2, 4),), training=True).cost
    assert cost.phases["backward"].calls == 0
    assert any("gradient" in note or "backward" in note for note in cost.notes)


def test_inference_has_one_phase() -> None:
    cost = count(nn.Linear(4, 4), (torch.zeros(2, 4),)).cost
    assert {p for p, t in cost.phases.items() if t.calls} == {"forward"}


def test_the_optimizers_step_is_a_phase_of_no_module() -> None:
    cost = count(nn.Linear(4, 4), (torch.zeros(2, 4),), training=True, optimizer="sgd").cost
    # p -= lr * g: a multiply and an add (or one fused) for each of 20 parameters
    assert cost.phases["optimizer"].all_flops in (20, 40)
    assert all("optimizer" not in m.phases for m in cost.modules)


@pytest.mark.parametrize(
    ("path", "shown"),
    [("_orig_mod.a", "a"), ("a._checkpoint_wrapped_module.b", "a.b"), ("", ""), ("a.b", "a.b")],
)
def test_paths_omit_the_wrappers_of_torch(path: str, shown: str) -> None:
    assert display_path(path) == shown


def test_a_module_that_raises_leaves_no_hook_behind() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("broken")

    from torch.nn.modules import module as torch_module

    before = len(torch_module._global_forward_pre_hooks), len(torch_module._global_forward_hooks)
    with pytest.raises(ValueError, match="broken"):
        count(Broken(), (torch.zeros(1),), backend="real")
    after = len(torch_module._global_forward_pre_hooks), len(torch_module._global_forward_hooks)
    assert after == before

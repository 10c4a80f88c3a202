"""foreach_optimizer and set_to_none."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.optim import optimizer as module

from ridgeline.fixes.catalog import foreach_optimizer, set_to_none
from ridgeline.fixes.fix import find_fix
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Skip
from ridgeline.records.run import OptimizerSeen
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import Here, applied, code, no_source, option


def seen(name: str, **options: str) -> tuple[OptimizerSeen, ...]:
    return (OptimizerSeen(name=name, options=options),)


def test_lists_are_for_a_cpu_where_torch_loops() -> None:
    reason_to_skip = foreach_optimizer.reason_to_skip
    assert reason_to_skip(Ground(optimizers=seen("RMSprop"))) is None
    assert (
        code(reason_to_skip(Ground(device="cuda", optimizers=seen("RMSprop"))))
        == Skip.TORCH_DOES_SO
    )
    chosen = Ground(device="cuda", optimizers=seen("RMSprop", foreach="False"))
    assert code(reason_to_skip(chosen)) == Skip.PROGRAM_SETS
    assert code(reason_to_skip(Ground(optimizers=seen("Adam", fused="True")))) == Skip.ALREADY_FUSED
    assert (
        code(reason_to_skip(Ground(optimizers=seen("NAdam", foreach="True")))) == Skip.ALREADY_SET
    )
    assert code(reason_to_skip(Ground(optimizers=seen("Lion")))) == Skip.OPTIMIZER_NOT_TORCHS
    assert code(reason_to_skip(Ground())) == Skip.NO_OPTIMIZER


def test_lists_leave_what_the_program_chose() -> None:
    program = Here()
    foreach_optimizer.apply(program, {})
    assert program.makes("NAdam", lr=0.1)["foreach"] is True
    assert program.makes("Adam", foreach=False)["foreach"] is False
    assert "foreach" not in program.makes("Adam", fused=True)
    assert program.done == [option("NAdam", "foreach", True)]
    edits = find_fix("foreach-optimizer").source_edits(program.outcome()[0][0], no_source)
    done = patched("train.py", b"o = torch.optim.NAdam(m.parameters(), 0.1)\n", edits)
    assert "NAdam(m.parameters(), 0.1, foreach=True)" in done.text


@pytest.fixture
def program() -> Iterator[Here]:
    theirs = module.Optimizer.zero_grad, torch.nn.Module.zero_grad
    hooks = dict(module._global_optimizer_pre_hooks)
    here = Here()
    set_to_none.apply(here, {})
    yield here
    module.Optimizer.zero_grad, torch.nn.Module.zero_grad = theirs  # type: ignore[method-assign]
    module._global_optimizer_pre_hooks.clear()
    module._global_optimizer_pre_hooks.update(hooks)


def trained(steps: int, skips: tuple[int, ...] = (), **options: Any) -> list[Any]:
    """Two layers; in the steps named the second is left out."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]
    parameters = [p for layer in layers for p in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, **options)
    for step in range(steps):
        hidden = layers[0](torch.ones(2, 3))
        out = hidden if step in skips else layers[1](hidden)
        optimizer.zero_grad(set_to_none=False)
        out.square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in parameters]


def same(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


PLAIN = trained(8, momentum=0.9)
SKIPPING = trained(8, skips=(2,), momentum=0.9)
NO_MOMENTUM = trained(8, skips=(2,))


def test_gradients_are_dropped_and_results_are_equal(program: Here) -> None:
    assert same(trained(8, momentum=0.9), PLAIN)
    assert program.done == [option("zero_grad", "set_to_none", True)]
    dropped = applied("set-to-none", *program.done, places=["train.py:1"])
    edits = find_fix("set-to-none").source_edits(dropped, no_source)
    done = patched("train.py", b"optimizer.zero_grad(set_to_none=False)\n", edits)
    assert "zero_grad(set_to_none=True)" in done.text


def test_a_layer_left_out_early_makes_it_not_applied_and_equal(program: Here) -> None:
    assert same(trained(8, skips=(2,), momentum=0.9), SKIPPING)
    assert program.done == []
    assert code(program.why_not) == Skip.MISSING_GRADIENT


def test_a_layer_left_out_late_ends_the_trial(program: Here) -> None:
    with pytest.raises(RuntimeError, match="got no gradient"):
        trained(9, skips=(7,), momentum=0.9)


def test_plain_sgd_moves_nothing_by_zeros(program: Here) -> None:
    assert same(trained(8, skips=(2,)), NO_MOMENTUM)
    assert program.done


def test_a_program_that_drops_already_has_nothing_to_change(program: Here) -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()
    assert program.done == []
    assert code(program.why_not) == Skip.NO_ZERO_GRAD_CALL


def test_dropping_is_able_where_filling_costs_time() -> None:
    has = Ground(optimizers=seen("SGD"), findings=("zero-grad-fill",))
    assert set_to_none.reason_to_skip(has) is None
    assert code(set_to_none.reason_to_skip(Ground(optimizers=seen("SGD")))) == Skip.NO_ZERO_FILL

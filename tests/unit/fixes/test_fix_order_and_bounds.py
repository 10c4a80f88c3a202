"""What is tried where, and after what: the grounds of changes that depend on others, or on what the
program sets itself."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from ridgeline.fixes.catalog import (
    affinity,
    channels_last,
    compiled_autograd,
    foreach_optimizer,
    fused_optimizer,
    loader_workers,
    non_blocking,
    persistent_workers,
    pin_memory,
    prefetch,
    tf32,
)
from ridgeline.fixes.fix import Registered, find_fix, registered
from ridgeline.fixes.program import Program
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.run import LoaderSeen, ModuleSeen, OptimizerSeen
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import Here, code, done, no_source

GPU = Ground(device="cuda", capability=(9, 0))
BOUND_BY_INPUT = (
    "loader-workers", "persistent-workers", "prefetch", "larger-batch", "fused-cross-entropy",
)  # fmt: skip
"""By shares that every run knows; of the last one `reason_to_skip` asks first."""


@pytest.fixture
def precision() -> Iterator[None]:
    before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before)
    torch.backends.cudnn.allow_tf32 = cudnn


def test_tf32_is_said_when_a_step_has_ended_with_it(precision: None) -> None:
    program = Here("cuda")
    tf32.apply(program, {})
    assert program.done == []
    program.step_ended()
    assert program.done == [because(Done.SETTING, statement=tf32.SETTING)]
    edits = find_fix("tf32").source_edits(program.outcome()[0][0], no_source)
    copy = patched("train.py", b"from torch import nn\n\nnet = nn.Linear(1, 1)\n", edits)
    assert "import torch\n" in copy.text


def test_a_program_that_wants_full_float32_products_keeps_them(precision: None) -> None:
    program = Here("cuda")
    tf32.apply(program, {})
    torch.set_float32_matmul_precision("highest")
    program.step_ended()
    assert program.done == []
    assert code(program.why_not) == Skip.PROGRAM_SETS


def test_tf32_does_nothing_without_a_gpu(precision: None) -> None:
    before = torch.get_float32_matmul_precision()
    program = Here("cpu")
    tf32.apply(program, {})
    program.step_ended()
    assert code(program.why_not) == Skip.NO_GPU
    assert torch.get_float32_matmul_precision() == before


def test_tf32_is_bounded_by_the_products_there_are_in_float32() -> None:
    assert tf32.bound(Ground(products_share=0.0)) == 1
    assert tf32.bound(Ground(products_share=0.8)) == pytest.approx(4)
    assert tf32.bound(Ground()) is None
    halves = (ModuleSeen(name="Net", dtypes=("bfloat16",)),)
    in_halves = Ground(device="cuda", capability=(9, 0), modules=halves)
    assert tf32.reason_to_skip(in_halves) == because(Skip.NO_FLOAT32, model="the model")
    assert tf32.reason_to_skip(GPU) is None


def test_a_model_that_is_channels_last_already_is_not_applied() -> None:
    def begun(model: nn.Module, x: torch.Tensor) -> tuple[Any, ...]:
        program = Program(torch)
        channels_last.apply(program, {})
        program.call_begins(model, (x,), {})
        return program.outcome()

    model = nn.Sequential(nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(2, 3, 8, 8)
    turned = images.to(memory_format=torch.channels_last)
    applied, left = begun(model, turned)
    assert applied == ()
    assert left[0].reason.code == Skip.ALREADY_SET
    assert "forward" not in vars(model)
    assert done(begun(model, images)[0])[0].facts["images"] is True
    assert begun(nn.Sequential(nn.Conv2d(3, 4, 3)), turned)[0]


def test_what_needs_workers_is_tried_once_they_are_there() -> None:
    waits = Ground(input_share=0.6, cores=2, loaders=(LoaderSeen(epochs=3),))
    for later in (persistent_workers, prefetch):
        assert code(later.reason_to_skip(waits)) == Skip.NO_WORKERS
        assert later.reason_to_skip(loader_workers.after(waits, {"workers": "2"})) is None


def test_memory_is_pinned_before_copies_are_not_waited_for() -> None:
    plain = Ground(device="cuda", busy=0.8, loaders=(LoaderSeen(),))
    assert round(non_blocking.bound(plain), 3) < round(pin_memory.bound(plain), 3)
    assert non_blocking.bound(pin_memory.after(plain, {})) == pytest.approx(1.25)


def test_compiling_gains_little_where_a_gpu_multiplies_matrices_alone() -> None:
    matrices = Ground(device="cuda", products_least_share=1.0)
    assert compiled_autograd.bound(matrices) == pytest.approx(1.25)
    assert compiled_autograd.bound(replace(matrices, convolutions=True)) == pytest.approx(4)


@pytest.mark.parametrize("one", registered(), ids=lambda one: one.fix.id)
def test_no_change_is_bounded_where_nothing_is_known_of_the_step(one: Registered) -> None:
    """A run without a trace, or without phases: a bound of 1 × would leave every change untried."""
    assert one.bound is None or one.fix.id in BOUND_BY_INPUT or one.bound(Ground()) is None


def test_a_fused_update_may_gain_more_than_the_update_took_on_a_cpu() -> None:
    """Its passes over memory push the model out of the cache: 3.6 ms of 19.6 were gained where the
    update took 2.7."""
    bound = fused_optimizer.bound(Ground(optimizer_share=2.7 / 19.6))
    assert bound is not None
    assert bound > 19.6 / 16.0
    assert fused_optimizer.bound(Ground(device="cuda", optimizer_share=0.2)) == pytest.approx(1.25)


def test_an_affinity_that_holds_workers_is_released_beside_a_gpu_too() -> None:
    assert affinity.reason_to_skip(Ground(device="cuda", findings=("affinity",))) is None


def test_lists_are_for_optimizers_that_torch_has_not_fused() -> None:
    adam, rms = OptimizerSeen(name="AdamW"), OptimizerSeen(name="RMSprop")
    better = because(Skip.FUSED_IS_BETTER, optimizer="AdamW")
    assert foreach_optimizer.reason_to_skip(Ground(optimizers=(adam,))) == better
    assert foreach_optimizer.reason_to_skip(Ground(optimizers=(adam, rms))) is None

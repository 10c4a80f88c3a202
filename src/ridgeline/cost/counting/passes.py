"""One pass of a model under the counter: forward, and for training the backward too.

The model's own state (weights, buffers, gradients, mode, random numbers) is as before afterwards.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ridgeline.cost.counting.counter import CostMode, has_no_data
from ridgeline.cost.counting.fused_attention import FusedCalls, attention_kept_fused
from ridgeline.cost.counting.hugging_face import without_full_mask
from ridgeline.cost.counting.ledger import CUDA_BLOCK_BYTES, StorageLedger
from ridgeline.cost.counting.modules import ModuleTracker
from ridgeline.cost.counting.operands import is_distributed
from ridgeline.cost.counting.parameters import packed_weights
from ridgeline.cost.counting.stand_in import Weightless
from ridgeline.cost.counting.surroundings import (
    autocast_noticed,
    eager,
    preserved,
    silenced,
    threads_noticed,
    without_fast_path,
)
from ridgeline.cost.counting.values import contained, held, mapped
from ridgeline.errors import DataDependentError
from ridgeline.records.cost import Backend


class Pass:
    """What a pass left behind: the tallies, the ledger, and where forward ended."""

    def __init__(
        self, modules: ModuleTracker, ledger: StorageLedger, mode: CostMode, training: bool
    ) -> None:
        self.training = training
        self.modules = modules
        self.ledger = ledger
        self.mode = mode
        self.static_bytes: dict[str, int] = {}
        self.forward_end = 0
        self.end_bytes = 0
        """Alive when the pass was over, the output included."""
        self.fused_attention = 0
        self.gradient_bytes = 0
        self.trained: list[int] = []
        """Positions of the parameters that got a gradient."""
        self.notes: list[str] = []


def run_pass(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backend: Backend,
    training: bool,
) -> Pass:
    device = device_of(model, args, kwargs)
    ledger = StorageLedger(CUDA_BLOCK_BYTES if device.type == "cuda" else 1)
    with ExitStack() as stack:
        # stand-ins take the place of tensors, so only a real pass writes to the model's own
        stack.enter_context(preserved(model, training=training, values=backend == "real"))
        stack.enter_context(eager())
        stack.enter_context(without_fast_path())
        stack.enter_context(silenced())
        own_mode, note = None, ""
        if backend == "real":
            args, kwargs = mapped(args, _copied), mapped(kwargs, _copied)
        else:
            _refuse_distributed(model, backend)
            kwargs, note = without_full_mask(model, kwargs)
            weightless = Weightless(backend)
            stack.enter_context(weightless.in_place_of(model))
            args, kwargs = mapped(args, weightless.tensor), mapped(kwargs, weightless.tensor)
            stack.enter_context(weightless.active())
            own_mode = weightless.fake_mode
        modules = stack.enter_context(ModuleTracker(model))
        result = Pass(modules, ledger, CostMode(modules, ledger, own_mode=own_mode), training)
        result.notes += [note] if note else []
        result.static_bytes = {
            "parameters": ledger.add_all(model.parameters(), "parameters")
            + sum(ledger.add_packed(t, "parameters") for t in packed_weights(model)),
            "buffers": ledger.add_all(model.buffers(), "buffers"),
            "inputs": ledger.add_all(held((args, kwargs)), "inputs"),
        }
        attention = FusedCalls()
        if backend == "meta":
            attention = stack.enter_context(attention_kept_fused())
        stack.enter_context(_explained(backend))
        threads = stack.enter_context(threads_noticed())
        autocast = stack.enter_context(autocast_noticed())
        _run(model, args, kwargs, training, result)
        if autocast and backend == "meta":
            result.notes.append(
                "autocast does not act on meta tensors: counted in their own dtype; --dtype builds "
                "the model in another"
            )
        if threads:
            result.notes.append("work on the Python threads that the model starts is not counted")
        result.fused_attention = attention.count
        ledger.release()
    return result


def _run(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    training: bool,
    result: Pass,
) -> None:
    with result.mode:
        with torch.set_grad_enabled(training):
            output = model(*args, **kwargs)
        result.modules.forward_ended()
        result.forward_end = result.ledger.now
        if training:
            with result.mode.phases.backward():
                started = backward_from(output)
            if not started:
                result.notes.append("no output needs a gradient: there is no backward to count")
        result.end_bytes = result.ledger.live_bytes
    for position, parameter in enumerate(model.parameters()):
        if parameter.grad is None:
            continue
        if parameter.grad.layout is not torch.strided and has_no_data(parameter.grad):
            raise DataDependentError("a sparse gradient without data has no elements to count")
        result.trained.append(position)
        for entry in result.ledger.entries_of(parameter.grad):
            if entry.kind == "intermediate":
                entry.kind = "gradients"
                result.gradient_bytes += entry.bytes


def _refuse_distributed(model: torch.nn.Module, backend: Backend) -> None:
    """FSDP moves its parameters about by itself, and DTensor works out its shapes on fake tensors
    that look like ours: both are counted on a real pass."""
    sharded = any(type(m).__name__.startswith("FSDP") for m in model.modules())
    if sharded or (backend == "fake" and any(is_distributed(p) for p in model.parameters())):
        raise DataDependentError("distributed parameters are counted on a real pass")


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """An input of the user's that a real pass may write to or give a gradient."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def differentiable(output: Any) -> list[torch.Tensor]:
    """What backward can start from: a loss if the model computes one (`.loss`, `["loss"]`, or the
    only scalar), else every output that needs a gradient."""
    named = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(named, torch.Tensor) and named.requires_grad:
        return [named]
    found = [t for t in contained(output) if t.requires_grad]
    # objects are opened only where nothing else is found: a cache is no output to train on
    found = found or [t for t in held(output) if t.requires_grad]
    scalars = [t for t in found if t.dim() == 0]
    return scalars if len(scalars) == 1 else found


def backward_from(output: Any) -> bool:
    """Backward with a gradient of ones, as a sum over the outputs would give: no loss of our own is
    added to the work. False where nothing can be differentiated."""
    starts = differentiable(output)
    if starts:
        torch.autograd.backward(starts, [torch.ones_like(t) for t in starts])
    return bool(starts)


def device_of(
    model: torch.nn.Module, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers(), *held((args, kwargs or {}))):
        return tensor.device
    return torch.device("cpu")


_NEEDS_DATA = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
    "UnsupportedOperatorException",
    "UnsupportedFakeTensorException",
)
_NEEDS_DATA_WORDS = (
    "meta tensors",
    "out of meta tensor",
    "Meta backend",
    "'Meta'",
    "data-dependent",
    "no data",
    "fake tensor",
    "FakeTensor",
    "device meta",
    "numpy",
    "register_meta",
    "nonzero",
)


@contextmanager
def _explained(backend: Backend) -> Iterator[None]:
    """Where tensors carry no data, a failure that only data would cure is named as that."""
    try:
        yield
    except Exception as error:
        if backend == "real":
            raise
        words = str(error)
        if backend == "meta" and "on the same device" in words:
            raise DataDependentError(
                "the model holds tensors that are neither parameters nor buffers, and they are not "
                "on meta with the rest; register_buffer brings them along"
            ) from error
        if type(error).__name__ in _NEEDS_DATA or any(w in words for w in _NEEDS_DATA_WORDS):
            first = words.strip().splitlines()[0] if words.strip() else type(error).__name__
            raise DataDependentError(
                f"the model needs values that {backend} tensors do not carry: {first[:200]}"
            ) from error
        raise

"""A model's parameters and buffers, each storage counted once, and the memory and work of an
optimizer."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ridgeline.cost.counting.counter import CostMode, ModuleTracker
from ridgeline.cost.counting.ledger import StorageLedger
from ridgeline.cost.counting.operands import dtype_name, storage_key, stored_parts
from ridgeline.errors import UsageError
from ridgeline.records.cost import Parameters


def _view_key(tensor: torch.Tensor) -> tuple[int, int, int]:
    part = next(iter(stored_parts(tensor)), tensor)
    return storage_key(part), int(part.storage_offset()), tensor.numel()


def count_parameters(model: torch.nn.Module) -> Parameters:
    seen: set[tuple[int, int, int]] = set()
    total = trainable = tied = parameter_bytes = 0
    by_dtype: dict[str, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        if is_lazy(parameter):
            continue
        key = _view_key(parameter)
        if parameter.numel() and key in seen:
            tied += parameter.numel()
            continue
        seen.add(key)
        total += parameter.numel()
        trainable += parameter.numel() if parameter.requires_grad else 0
        parameter_bytes += sum(t.numel() * t.itemsize for t in stored_parts(parameter))
        name = dtype_name(parameter.dtype)
        by_dtype[name] = by_dtype.get(name, 0) + parameter.numel()
    for packed in packed_weights(model):
        total += packed.numel()
        parameter_bytes += packed.numel() * packed.itemsize
        name = dtype_name(packed.dtype)
        by_dtype[name] = by_dtype.get(name, 0) + packed.numel()
    buffers = buffer_bytes = 0
    for _, buffer in model.named_buffers(remove_duplicate=True):
        if buffer is None or is_lazy(buffer) or (buffer.numel() and _view_key(buffer) in seen):
            continue
        seen.add(_view_key(buffer))
        buffers += buffer.numel()
        buffer_bytes += sum(t.numel() * t.itemsize for t in stored_parts(buffer))
    return Parameters(
        total=total,
        trainable=trainable,
        frozen=total - trainable,
        tied=tied,
        buffers=buffers,
        parameter_bytes=parameter_bytes,
        buffer_bytes=buffer_bytes,
        by_dtype=by_dtype,
    )


def packed_weights(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the weights and biases of quantised layers, which are not among `parameters()` but in
    an object of their own."""
    for module in model.modules():
        unpack = getattr(module, "_weight_bias", None)
        if callable(unpack) and not list(module.parameters()) and not list(module.children()):
            yield from (t for t in unpack() if isinstance(t, torch.Tensor))


def count_by_module(model: torch.nn.Module) -> dict[str, int]:
    """Return the parameters of each module with its children; shared ones count once."""
    return {
        path: sum(p.numel() for p in module.parameters() if not is_lazy(p))
        for path, module in model.named_modules()
    }


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=1e-3, **k),
    "momentum": lambda p, **k: torch.optim.SGD(p, lr=1e-3, momentum=0.9, **k),
    "adam": lambda p, **k: torch.optim.Adam(p, lr=1e-3, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=1e-3, **k),
    "adafactor": lambda p, **k: torch.optim.Adafactor(p, lr=1e-3, **k),
    "rmsprop": lambda p, **k: torch.optim.RMSprop(p, lr=1e-3, **k),
    "adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=1e-3, **k),
}
EIGHT_BIT = {"adam8bit": 2, "adamw8bit": 2, "momentum8bit": 1}
"""The number of moments that an 8-bit optimizer keeps for each parameter, one byte each."""
BLOCK_ELEMENTS = 256
"""bitsandbytes stores one float32 scale for each block of this many values."""
MIN_8BIT_ELEMENTS = 4096
"""bitsandbytes keeps float32 moments for parameters with fewer elements than this."""

NAMES = (*OPTIMIZERS, *EIGHT_BIT)


def check_name(name: str) -> str:
    lowered = name.lower()
    if lowered not in NAMES:
        raise UsageError(
            f"no optimizer called {name!r} is known here", f"one of: {', '.join(NAMES)}"
        )
    return lowered


class OptimizerAccount:
    """The state, the temporary memory and the work of one optimizer step over these parameters."""

    def __init__(self, name: str, parameters: Sequence[torch.Tensor], foreach: bool) -> None:
        self.name = check_name(name)
        self.estimated = self.name in EIGHT_BIT
        self.state_bytes = 0
        self.temporary_bytes = 0
        self.mode: CostMode | None = None
        if self.estimated:
            self.state_bytes = sum(_eight_bit_bytes(p, EIGHT_BIT[self.name]) for p in parameters)
        elif parameters:
            self._step(parameters, foreach)

    def _step(self, parameters: Sequence[torch.Tensor], foreach: bool) -> None:
        stand_ins = [torch.nn.Parameter(torch.empty_like(p, device="meta")) for p in parameters]
        for stand_in in stand_ins:
            stand_in.grad = torch.empty_like(stand_in)
        options: dict[str, Any] = {"foreach": foreach}
        optimizer = OPTIMIZERS[self.name](stand_ins, **options)
        with _counting(StorageLedger()):
            optimizer.step()  # the first step creates the state
        state = state_tensors(optimizer)
        self.state_bytes = sum(t.numel() * t.itemsize for t in state)
        ledger = StorageLedger()
        grads = (p.grad for p in stand_ins if p.grad is not None)
        static = ledger.add_all((*stand_ins, *grads, *state), "static")
        self.mode = _counting(ledger)
        with self.mode:
            optimizer.step()
        self.temporary_bytes = ledger.peak_bytes - static


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the tensors that an optimizer keeps between steps."""
    values = (value for state in optimizer.state.values() for value in state.values())
    return [value for value in values if isinstance(value, torch.Tensor)]


def _counting(ledger: StorageLedger) -> CostMode:
    """Return a mode that counts an optimizer step. Adafactor reads the norm of a parameter: any
    number leads to the same work."""
    return CostMode(ModuleTracker(torch.nn.Module()), ledger, phase="optimizer", scalar=1.0)


def _eight_bit_bytes(parameter: torch.Tensor, moments: int) -> int:
    elements = parameter.numel()
    if elements < MIN_8BIT_ELEMENTS:
        return moments * elements * 4
    return moments * (elements + -(-elements // BLOCK_ELEMENTS) * 4)

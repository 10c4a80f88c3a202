"""What an optimizer keeps for each parameter and what its step costs: found by letting the real
optimizer step on meta tensors. 8-bit ones, whose kernels need a GPU, are estimated and say so."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ridgeline.cost.counting.counter import CostMode
from ridgeline.cost.counting.ledger import StorageLedger
from ridgeline.cost.counting.modules import ModuleTracker
from ridgeline.errors import UsageError

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
"""Moments kept, one byte each."""
BLOCK_ELEMENTS = 256
"""bitsandbytes keeps one float32 scale for each block of this many values."""
SMALLEST_8BIT = 4096
"""…and full float32 moments for parameters smaller than this."""

NAMES = (*OPTIMIZERS, *EIGHT_BIT)


def check_name(name: str) -> str:
    lowered = name.lower()
    if lowered not in NAMES:
        raise UsageError(
            f"no optimizer called {name!r} is known here", f"one of: {', '.join(NAMES)}"
        )
    return lowered


class OptimizerAccount:
    """One step of one optimizer over parameters of these shapes."""

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
            optimizer.step()  # the first step makes the state
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
    """What an optimizer keeps between steps."""
    kept = (value for state in optimizer.state.values() for value in state.values())
    return [value for value in kept if isinstance(value, torch.Tensor)]


def _counting(ledger: StorageLedger) -> CostMode:
    """Adafactor asks for the norm of a parameter: any number leads to the same work."""
    return CostMode(ModuleTracker(torch.nn.Module()), ledger, phase="optimizer", scalar=1.0)


def _eight_bit_bytes(parameter: torch.Tensor, moments: int) -> int:
    elements = parameter.numel()
    if elements < SMALLEST_8BIT:
        return moments * elements * 4
    return moments * (elements + -(-elements // BLOCK_ELEMENTS) * 4)

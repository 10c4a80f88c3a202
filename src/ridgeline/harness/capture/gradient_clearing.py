"""Whether gradients are cleared between two steps of an optimizer, or add up for ever.

One small parameter of each optimizer is followed. When the first backward after a step begins, the
gradient of that parameter must be None, filled with zeros, or another tensor. This shows whatever
cleared it (`zero_grad`, `p.grad = None`, `p.grad.zero_()`). Two cases need care. Gradients that are
accumulated on purpose are still cleared after the optimizer's step. Two optimizers that take turns
each clear their own gradients before their own turn. So a step counts as not cleared only if no
backward before the optimizer's next step found the gradient cleared.
"""

import weakref
from contextlib import suppress
from typing import Any

from msgspec import Struct

MAX_STEPS = 16
"""Steps of each optimizer that are followed. All of them come before the first step that is only
timed."""
MAX_OPTIMIZERS = 8
MAX_PARAMETERS = 64
"""Number of parameters among which the smallest is chosen."""
MAX_DEVICE_READINGS = 2
"""How often a gradient's values are read from a device, for each optimizer: each reading makes the
host wait. Afterwards only the gradient's version counter is compared."""


class _Followed(Struct):
    parameter: Any
    """A weak reference to the followed parameter; None while its gradient is not known."""
    pointer: int
    """Address of the gradient at the end of the optimizer's last step."""
    version: int
    """Version counter of the gradient at that moment."""
    looks: int = 0
    """Number of backwards since that step."""
    cleared: bool = False
    """Whether one of these backwards found the gradient None, zero or replaced."""
    checked: int = 0
    """Steps for which the answer is known."""
    kept: int = 0
    """How many of them began with the gradients of the step before."""
    device_readings: int = 0


class GradientClearing:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._followed: dict[int, _Followed] = {}

    def seen(self, optimizer: int) -> tuple[int, int]:
        """Return how many steps of an optimizer, given by its id, were checked, and how many of
        these steps began with the gradients of the step before."""
        found = self._followed.get(optimizer)
        return (found.checked, found.kept) if found is not None else (0, 0)

    def stepped(self, optimizer: Any) -> None:
        """Note that an optimizer's step has ended, with its gradients still in place."""
        found = self._followed.get(id(optimizer))
        if found is None and len(self._followed) >= MAX_OPTIMIZERS:
            return
        if found is not None:
            if found.checked >= MAX_STEPS:
                return
            if found.looks:
                found.checked += 1
                found.kept += not found.cleared
        followed = found.parameter if found is not None else None
        parameter = followed() if followed is not None else None
        if not self._is_plain(getattr(parameter, "grad", None)):
            parameter = self._smallest(optimizer)
        if parameter is None:
            if found is not None:
                found.looks = 0
            return
        grad = parameter.grad
        if found is None:
            found = self._followed[id(optimizer)] = _Followed(None, 0, 0)
        found.parameter, found.looks, found.cleared = weakref.ref(parameter), 0, False
        found.pointer, found.version = grad.data_ptr(), grad._version

    def pass_over(self) -> None:
        """Note that a step has ended which could not be checked: nothing is known until the next
        step has ended."""
        for found in self._followed.values():
            found.parameter, found.looks = None, 0

    def backward_begins(self) -> None:
        for found in self._followed.values():
            if found.checked < MAX_STEPS and not found.cleared and found.parameter is not None:
                parameter = found.parameter()
                found.cleared = parameter is None or self._is_clean(found, parameter.grad)
                found.looks += 1

    def _is_clean(self, found: _Followed, grad: Any) -> bool:
        if not self._is_plain(grad) or grad.data_ptr() != found.pointer:
            return True
        written = grad._version != found.version
        if written and not found.looks:
            return True  # no backward has run since the step, so the program wrote the gradient
        if not grad.is_cpu:
            if written or found.device_readings >= MAX_DEVICE_READINGS:
                return bool(written)  # a backward writes too: in doubt the program cleared it
            if self._torch.cuda.is_current_stream_capturing():
                return True
            found.device_readings += 1
        return not bool(grad.any())

    def _is_plain(self, grad: Any) -> bool:
        """Return whether `grad` is a dense tensor of torch's own class, on a device whose memory
        has addresses."""
        torch = self._torch
        return (
            type(grad) is torch.Tensor
            and grad.layout is torch.strided
            and grad.device.type in ("cpu", "cuda")
        )

    def _smallest(self, optimizer: Any) -> Any:
        """Return a parameter whose gradient is cheap to read and, on a CPU, not zero already; None
        if there is none."""
        plain = []
        with suppress(AttributeError, KeyError, TypeError):
            for group in optimizer.param_groups:
                plain += [p for p in group["params"] if self._is_plain(p.grad) and p.grad.numel()]
                if len(plain) >= MAX_PARAMETERS:
                    break
        plain.sort(key=lambda p: p.grad.numel())
        return next((p for p in plain[:4] if not p.grad.is_cpu or bool(p.grad.any())), None)

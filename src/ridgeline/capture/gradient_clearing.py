"""Whether gradients are cleared between two steps of an optimizer, or add up for ever.

One small parameter of each optimizer is followed. When the first backward after a step begins, its
gradient must be gone, filled with zeros, or another tensor: whatever cleared it (`zero_grad`,
`p.grad = None`, `p.grad.zero_()`), that shows. Gradients accumulated on purpose are cleared after
the optimizer's step all the same, and of two optimizers that take turns each clears its own before
its own turn: so a step counts as not cleared only if no backward up to the next one found it clean.
"""

import weakref
from contextlib import suppress
from typing import Any

from msgspec import Struct

MAX_STEPS = 16
"""Steps of each optimizer that are followed: all of them before any step is only timed."""
MAX_OPTIMIZERS = 8
MAX_PARAMETERS = 64
"""Parameters among which the smallest is looked for."""
MAX_DEVICE_READINGS = 2
"""Values of a gradient that are read from a device, for each optimizer: each makes the host wait.
Afterwards only its version tells."""


class _Followed(Struct):
    parameter: Any
    """A weak reference; None while nothing is known of it."""
    pointer: int
    version: int
    """Of the gradient, at the end of the optimizer's last step."""
    looks: int = 0
    """Backwards since that step."""
    cleared: bool = False
    """One of them found the gradient gone, or zero."""
    checked: int = 0
    kept: int = 0
    device_readings: int = 0


class GradientClearing:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._followed: dict[int, _Followed] = {}

    def seen(self, optimizer: int) -> tuple[int, int]:
        """Steps of an optimizer, by its id, that were checked; of those, how many began with the
        gradients of the step before."""
        found = self._followed.get(optimizer)
        return (found.checked, found.kept) if found is not None else (0, 0)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer's step has ended, with gradients still in place."""
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
        """A step has ended that could not be looked at: nothing is known until the next one."""
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
            return True  # nothing but the program has run since the optimizer's step
        if not grad.is_cpu:
            if written or found.device_readings >= MAX_DEVICE_READINGS:
                return bool(written)  # a backward writes, too: in doubt it was the program
            if self._torch.cuda.is_current_stream_capturing():
                return True
            found.device_readings += 1
        return not bool(grad.any())

    def _is_plain(self, grad: Any) -> bool:
        """A dense tensor of torch's own class, on a device whose memory has addresses."""
        torch = self._torch
        return (
            type(grad) is torch.Tensor
            and grad.layout is torch.strided
            and grad.device.type in ("cpu", "cuda")
        )

    def _smallest(self, optimizer: Any) -> Any:
        """A parameter whose gradient takes least to read, and is not zero by itself."""
        plain = []
        with suppress(AttributeError, KeyError, TypeError):
            for group in optimizer.param_groups:
                plain += [p for p in group["params"] if self._is_plain(p.grad) and p.grad.numel()]
                if len(plain) >= MAX_PARAMETERS:
                    break
        plain.sort(key=lambda p: p.grad.numel())
        return next((p for p in plain[:4] if not p.grad.is_cpu or bool(p.grad.any())), None)

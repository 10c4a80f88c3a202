"""The loss of each step, without making the program wait for it.

On a CPU it is read at once. On a device it is copied to pinned memory on the program's own stream,
and read when the step's events have passed.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any

_SLOTS = 512
_UNKNOWN = object()
_NOT_SCALED: tuple[Any, Any, float] = (None, None, 1.0)


class Losses:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._slots: Any = None
        self._next = 0
        self._scaled: tuple[Any, Any, float] = _NOT_SCALED
        """The last loss that a gradient scaler multiplied: a weak reference to the product, a
        ticket for the loss before scaling, and the number that this loss was divided by."""

    def before_scaling(self, outputs: Any, ticket: Any) -> None:
        self._scaled = (None, ticket, self.divisor(outputs))

    def scaled(self, product: Any) -> None:
        if type(product) is self._torch.Tensor:
            self._scaled = (weakref.ref(product), *self._scaled[1:])

    def of_backward(self, tensors: Any, note: Callable[[Any], Any]) -> tuple[Any, float]:
        """Return a ticket for the loss that a backward begins with, as it was before a scaler
        multiplied it, and the number that it was divided by."""
        (product, ticket, divisor), self._scaled = self._scaled, _NOT_SCALED
        if product is not None and product() is _first(tensors):
            return ticket, divisor
        return note(tensors), self.divisor(tensors)

    def note(self, tensors: Any) -> Any:
        """A ticket for `read`; None where there is no single number."""
        first = _first(tensors)
        torch = self._torch
        if type(first) is not torch.Tensor or torch._C._len_torch_dispatch_stack():
            return None  # the program's own kind of tensor, or a mode of its own that would see us
        if first.is_cpu and not torch._C._len_torch_function_stack():
            return first.item() if first.numel() == 1 and not first.is_complex() else None
        with torch._C.DisableTorchFunction():
            return self._note(first)

    def divisor(self, tensors: Any) -> float:
        """Return the number that the loss was divided by in its last operation; 1.0 if it was not.
        Programs that accumulate gradients over several batches divide in this way."""
        torch = self._torch
        first = _first(tensors)
        node = getattr(first, "grad_fn", None) if type(first) is torch.Tensor else None
        kind = type(node).__name__
        if kind not in ("DivBackward0", "MulBackward0"):
            return 1.0
        try:
            with torch._C.DisableTorchFunction():
                kept = node._raw_saved_other  # type: ignore[union-attr]
                if getattr(kept, "unpack_hook", _UNKNOWN) is not None:
                    return 1.0  # reading it would call a function of the program's own
                other = node._saved_other  # type: ignore[union-attr]
                if other is None or not other.is_cpu or other.numel() != 1 or other.requires_grad:
                    return 1.0
                value = float(other)
        except (RuntimeError, AttributeError, TypeError, ValueError):
            return 1.0
        return value if kind == "DivBackward0" else 1.0 / value if value else 1.0

    def _note(self, first: Any) -> Any:
        torch = self._torch
        if first.numel() != 1:
            return None
        loss = first.detach()
        if loss.device.type == "cpu":
            return float(loss) if not loss.is_complex() else None
        if loss.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None
        if self._slots is None:
            self._slots = torch.zeros(_SLOTS, dtype=torch.float32, device="cpu", pin_memory=True)
        slot = self._next % _SLOTS
        self._next += 1
        self._slots[slot].copy_(loss.reshape(()), non_blocking=True)
        return (slot, self._next)

    def read(self, ticket: Any) -> tuple[float | None, str]:
        """The loss, or what it is instead: nan, inf, -inf. Call when the device is past the
        step."""
        value = self._value(ticket)
        if value is None or math.isfinite(value):
            return value, ""
        return None, str(value)

    def _value(self, ticket: Any) -> float | None:
        if ticket is None:
            return None
        if isinstance(ticket, tuple):
            slot, number = ticket
            if self._next - number >= _SLOTS:
                return None  # overwritten since
            ticket = float(self._slots[slot])
        return float(ticket)


def _first(tensors: Any) -> Any:
    return tensors[0] if isinstance(tensors, tuple | list) and len(tensors) else tensors

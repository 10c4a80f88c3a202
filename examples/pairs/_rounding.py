"""Whether a result in lower precision differs by rounding and by nothing else.

A tolerance alone has to be wide where a format has few bits, and lets through what is a little too
large. Rounding has no preferred direction, so the scale can be held to far less than the error.
"""

from torch import Tensor


def error_of(expected: Tensor, found: Tensor) -> float:
    """Relative to the norm."""
    expected, found = expected.float(), found.float()
    return ((found - expected).norm() / expected.norm()).item()


def scale_of(expected: Tensor, found: Tensor) -> float:
    """What `expected` has to be multiplied by to come nearest to `found`."""
    expected, found = expected.float(), found.float()
    return ((found * expected).sum() / expected.square().sum()).item()


def objection(expected: Tensor, found: Tensor, *, error: float, scale: float) -> str | None:
    """A sentence where the error or the scale is further off than allowed; NaN is."""
    is_error, is_scale = error_of(expected, found), scale_of(expected, found)
    if not is_error <= error:
        return f"off by {is_error:.2%}, {error:.2%} allowed"
    if not abs(is_scale - 1) <= scale:
        return f"{is_scale:.4f} times as large; rounding has no preferred direction"
    return None

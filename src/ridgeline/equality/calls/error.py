"""How far numbers lie from other numbers."""

from math import inf, isfinite, isnan, sqrt

import torch
from msgspec import Struct

from ridgeline.equality.calls.leaf import Leaf
from ridgeline.equality.calls.outputs import Outputs

_HUGE = 1000.0
"""Numbers so many times the median are judged apart: next to a mask's -1e9 any error is small."""

_LOOKED_AT = 2**14  # elements, to find a median by


class Error(Struct, frozen=True):
    """Relative distances of one tensor from another."""

    norm: float = 0.0
    """Of the difference, over the norm of what it is measured against."""
    element: float = 0.0
    """The worst element's, over its own size plus the tensor's root mean square."""
    rest: float = 0.0
    """As `norm`, without numbers that dwarf the others; 0 where there are none such."""
    where: int = 0
    """The worst element's place."""


def numbers(values: torch.Tensor) -> torch.Tensor:
    """In a row, in float64; a complex number is two."""
    values = values.reshape(-1)
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj()).reshape(-1)
    if values.itemsize == 1 and values.is_floating_point():
        values = values.float()
    return values.double()


def error(values: torch.Tensor, target: torch.Tensor, scale: torch.Tensor | None = None) -> Error:
    """Of `values` against `target`, both in a row. `scale` is what the size is taken of, where that
    is not the target: a step's change is small beside the weights it changes."""
    if values.numel() == 0:
        return Error()
    scale = target if scale is None else scale
    if not isfinite(float(values.sum() + target.sum() + scale.sum())):
        finite = values.isfinite() & target.isfinite() & scale.isfinite()
        values, target, scale = values[finite], target[finite], scale[finite]
        if values.numel() == 0:
            return Error()
    difference = (values - target).abs()
    size = scale.abs()
    rms = float(size.square().mean().sqrt())
    # Nothing but zeros has no size to be relative to: the error is taken as it is.
    elements = difference / (size + rms) if rms else difference
    where = int(elements.argmax())
    total = float(difference.square().mean().sqrt())
    return Error(
        norm=total / rms if rms else total,
        element=float(elements[where]),
        rest=_rest(difference, size),
        where=where,
    )


def _rest(difference: torch.Tensor, size: torch.Tensor) -> float:
    part = size[:: max(1, size.numel() // _LOOKED_AT)]
    nonzero = part[part > 0]
    if nonzero.numel() < 2:
        return 0.0
    limit = _HUGE * float(nonzero.median())
    if float(size.max()) <= limit:
        return 0.0
    huge = size > limit
    rest = float(size[~huge].norm())
    return float(difference[~huge].norm()) / rest if rest else 0.0


def distance(one: Outputs, other: Outputs) -> float:
    """The largest relative distance between two outputs' tensors; infinite where they differ in
    anything but rounding."""
    if len(one.leaves) != len(other.leaves):
        return inf
    return max((_apart(a, b) for a, b in zip(one.leaves, other.leaves, strict=True)), default=0.0)


def _apart(one: Leaf, other: Leaf) -> float:
    if (one.shape, one.dtype, one.text, one.nans) != (
        other.shape, other.dtype, other.text, other.nans,
    ):  # fmt: skip
        return inf
    if one.values is None or other.values is None:
        return 0.0 if one.values is other.values else inf
    if same_bits(one.values, other.values):
        return 0.0
    if not (one.values.is_floating_point() or one.values.is_complex()):
        return inf
    found = error(numbers(other.values), numbers(one.values)).norm
    return inf if isnan(found) else found


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    a, b = one.contiguous().reshape(-1), other.contiguous().reshape(-1)
    if a.is_complex():
        a, b = torch.view_as_real(a).reshape(-1), torch.view_as_real(b).reshape(-1)
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def same_leaf(one: Leaf, other: Leaf) -> bool:
    about = ("path", "kind", "dtype", "shape", "text")
    if any(getattr(one, name) != getattr(other, name) for name in about):
        return False
    if one.values is None or other.values is None:
        return one.values is other.values
    return same_bits(one.values, other.values)


def same_outputs(one: Outputs, other: Outputs) -> bool:
    """Bit for bit."""
    if len(one.leaves) != len(other.leaves):
        return False
    return all(same_leaf(a, b) for a, b in zip(one.leaves, other.leaves, strict=True))


def shuffled(values: torch.Tensor) -> torch.Tensor:
    """Every number in another's place."""
    return values.reshape(-1).roll(max(1, int(sqrt(values.numel())))).reshape(values.shape)

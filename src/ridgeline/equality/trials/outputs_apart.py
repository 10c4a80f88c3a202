"""How far two prints of a model's outputs lie apart, as a part of their norm. None where that
cannot be told, which is not the same as nothing."""

from collections.abc import Sequence
from math import hypot, isfinite, sqrt

from ridgeline.records.trial import OutputPrint

EACH = 2
"""Numbers of a sketch that are of the same part of an output."""


def apart(ours: Sequence[OutputPrint], theirs: Sequence[OutputPrint]) -> float | None:
    """The furthest of their tensors that can be asked."""
    if [one.numel for one in ours] != [one.numel for one in theirs]:
        return None
    both = [_far(one, other) for one, other in zip(ours, theirs, strict=True)]
    return max((far for far in both if far is not None), default=None)


def _far(one: OutputPrint, other: OutputPrint) -> float | None:
    """Other elements that are not finite leave others to compare. What lies beside a mask is asked
    by itself too, where it is as many elements."""
    if one.odd != other.odd or not (isfinite(one.norm) and isfinite(other.norm)):
        return None
    far = _between(one, other)
    if one.rest is None or other.rest is None or one.rest.numel != other.rest.numel:
        return far
    return max(far, _between(one.rest, other.rest))


def _between(one: OutputPrint, other: OutputPrint) -> float:
    """Of a twelfth by the norm such a part has in the mean, or by its own where that is more: one
    that is all padding is not known to parts of itself."""
    if one.norm == other.norm and one.sketch == other.sketch:
        return 0.0
    size = one.norm or other.norm
    found = [abs(one.norm - other.norm) / size]
    differences = [a - b for a, b in zip(one.sketch, other.sketch, strict=False)]
    found.append(hypot(*differences) / size)
    usual = size / sqrt(max(len(differences) / EACH, 1))
    for at in range(0, len(differences), EACH):
        own = hypot(*one.sketch[at : at + EACH])
        found.append(hypot(*differences[at : at + EACH]) / max(usual, own))
    return max(found)

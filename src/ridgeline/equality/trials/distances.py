"""How far two trials lie apart: a step, a tensor, an output. Relative numbers; None where one of
the two was not seen, and where a value is not finite (that is `finite`'s to judge)."""

from collections.abc import Sequence
from math import hypot, isfinite, sqrt
from statistics import median

from ridgeline.records.trial import OutputPrint, TensorPrint, Trial, WatchedStep

ULP = 2.0**-23
"""Of float32: what losses and prints are kept in."""
Series = tuple[float | None, ...]


def of_losses(one: Trial, other: Trial) -> Series:
    return _series([step.loss for step in one.watched], [step.loss for step in other.watched])


def of_gradient_norms(one: Trial, other: Trial) -> Series:
    return _series(
        [step.gradient_norm for step in one.watched],
        [step.gradient_norm for step in other.watched],
    )


def of_batch_sums(one: Trial, other: Trial) -> Series:
    """Against the largest: a normalised batch sums to about nothing."""
    ours, theirs = _sums(one.watched), _sums(other.watched)
    size = max((abs(value) for value in ours if value is not None), default=0.0)
    return tuple(_relative(a, b, size) for a, b in zip(ours, theirs, strict=False))


def of_evaluation(one: Trial, other: Trial) -> Series:
    return _outputs(one.evaluation, other.evaluation)


def of_outputs(one: Trial, other: Trial) -> Series:
    return _outputs(one.outputs, other.outputs)


def _outputs(ours: tuple[float, ...], theirs: tuple[float, ...]) -> Series:
    """A projection is measured by the norm before it: it may be about nothing itself."""
    size = 0.0
    drifts: list[float | None] = []
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        size = abs(a) if place % 2 == 0 else max(size, abs(a))
        drifts.append(_relative(a, b, size))
    return tuple(drifts)


def of_tensor(
    one: TensorPrint, other: TensorPrint, scale: float, without: frozenset[int] = frozenset()
) -> float | None:
    """The largest of what its numbers show. `without`: places of the sketch that follow rounding
    alone; its norm and its way do in part, and are not asked."""
    pairs = [] if without else [(one.norm, other.norm), (one.moved, other.moved)]
    sketched = bool(one.sketch) and len(one.sketch) == len(other.sketch)
    if not sketched:
        pairs.append((one.projection, other.projection))
    if not all(isfinite(a) and isfinite(b) for a, b in (*pairs, (one.norm, other.norm))):
        return None
    apart = 0.0
    if sketched:
        both = enumerate(zip(one.sketch, other.sketch, strict=True))
        apart = hypot(*(a - b for place, (a, b) in both if place not in without))
    return max(apart, *(abs(a - b) for a, b in pairs), 0.0) / scale


def of_way(one: Trial, other: Trial) -> float | None:
    """How much further the parameters went, in the median of those that went: what rounds differs
    from one to the next, a learning rate moves all."""
    found = {tensor.name: tensor for tensor in other.tensors}
    typical = typical_move(one.tensors)
    ratios = [
        found[tensor.name].moved / tensor.moved - 1
        for tensor in one.tensors
        if not tensor.buffer
        and tensor.name in found
        and isfinite(tensor.moved)
        and isfinite(found[tensor.name].moved)
        and tensor.moved > 0.1 * typical * sqrt(max(tensor.numel, 1))
    ]
    return abs(median(ratios)) if ratios else None


def typical_move(tensors: Sequence[TensorPrint]) -> float:
    """Of one element of a parameter, in the median parameter that moved."""
    moves = [
        tensor.moved / sqrt(max(tensor.numel, 1))
        for tensor in tensors
        if not tensor.buffer and isfinite(tensor.moved) and tensor.moved > 0
    ]
    return median(moves) if moves else 0.0


def scale_of(tensor: TensorPrint, typical: float) -> float:
    """What a tensor's differences are measured by: how far it moved, or would have if it moved as
    the others do. A bias before a batch norm has a gradient of nothing but rounding, and what that
    is depends on the precision; it may not be asked to repeat itself."""
    like_others = 0.0 if tensor.buffer else typical * sqrt(max(tensor.numel, 1))
    candidates = (tensor.moved, like_others, ULP * tensor.norm)
    return max((value for value in candidates if isfinite(value)), default=0.0) or 1.0


def _sums(steps: Sequence[WatchedStep]) -> list[float | None]:
    return [step.batch_sum for step in steps]


def _series(ours: list[float | None], theirs: list[float | None]) -> Series:
    """Against the step's own value, or the usual one where that is smaller: a loss that crosses
    zero, or that of a batch learnt by heart, is not known to parts of itself."""
    sizes = [abs(value) for value in ours if value is not None and isfinite(value)]
    usual = median(sizes) if sizes else 0.0
    return tuple(_relative(a, b, usual) for a, b in zip(ours, theirs, strict=False))


def _relative(one: float | None, other: float | None, at_least: float) -> float | None:
    if one is None or other is None or not (isfinite(one) and isfinite(other)):
        return None
    size = max(abs(one), at_least)
    if one == other:
        return 0.0
    return abs(one - other) / size if size > 0 else 1.0


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

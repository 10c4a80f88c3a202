"""Relative distances between two trials: of a step, a tensor, an output. None where one of the two
was not seen, or a value is not finite (`check_finite` judges that)."""

from collections.abc import Sequence
from math import hypot, isfinite, sqrt
from statistics import median

from ridgeline.records.trial import OutputPrint, TensorPrint, Trial

ULP = 2.0**-23
"""Rounding unit of float32, in which losses and prints are computed."""
Series = tuple[float | None, ...]


def of_losses(one: Trial, other: Trial) -> Series:
    return _series([step.loss for step in one.watched], [step.loss for step in other.watched])


def of_gradient_norms(one: Trial, other: Trial) -> Series:
    return _series(
        [step.gradient_norm for step in one.watched],
        [step.gradient_norm for step in other.watched],
    )


def of_batch_sums(one: Trial, other: Trial) -> Series:
    """Return distances relative to the largest sum: that of a normalised batch is about zero."""
    ours = [step.batch_sum for step in one.watched]
    theirs = [step.batch_sum for step in other.watched]
    size = max((abs(value) for value in ours if value is not None), default=0.0)
    return tuple(_relative(a, b, size) for a, b in zip(ours, theirs, strict=False))


def of_evaluation(one: Trial, other: Trial) -> Series:
    return _outputs(one.evaluation, other.evaluation)


def of_outputs(one: Trial, other: Trial) -> Series:
    return _outputs(one.outputs, other.outputs)


def _outputs(ours: tuple[float, ...], theirs: tuple[float, ...]) -> Series:
    """Return distances; that of a projection is relative to the norm before it, because a
    projection may be about zero itself."""
    size = 0.0
    drifts: list[float | None] = []
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        size = abs(a) if place % 2 == 0 else max(size, abs(a))
        drifts.append(_relative(a, b, size))
    return tuple(drifts)


def of_tensor(
    one: TensorPrint, other: TensorPrint, scale: float, ignored: frozenset[int] = frozenset()
) -> float | None:
    """Return the largest distance that the numbers of two prints show. `ignored` are indices of the
    sketch that follow rounding alone; the norm and the movement then do so in part, and are ignored
    too."""
    pairs = [] if ignored else [(one.norm, other.norm), (one.moved, other.moved)]
    sketched = bool(one.sketch) and len(one.sketch) == len(other.sketch)
    if not sketched:
        pairs.append((one.projection, other.projection))
    if not all(isfinite(a) and isfinite(b) for a, b in (*pairs, (one.norm, other.norm))):
        return None
    distance = 0.0
    if sketched:
        both = enumerate(zip(one.sketch, other.sketch, strict=True))
        distance = hypot(*(a - b for index, (a, b) in both if index not in ignored))
    return max(distance, *(abs(a - b) for a, b in pairs), 0.0) / scale


def of_median_movement(one: Trial, other: Trial) -> float | None:
    """Return by what share the distance that the median parameter moved differs. Rounding changes
    it for some parameters up and for others down, another learning rate changes all."""
    by_name = {tensor.name: tensor for tensor in other.tensors}
    typical = typical_move(one.tensors)
    ratios = [
        by_name[tensor.name].moved / tensor.moved - 1
        for tensor in one.tensors
        if not tensor.buffer
        and tensor.name in by_name
        and isfinite(tensor.moved)
        and isfinite(by_name[tensor.name].moved)
        and tensor.moved > 0.1 * typical * sqrt(max(tensor.numel, 1))
    ]
    return abs(median(ratios)) if ratios else None


def typical_move(tensors: Sequence[TensorPrint]) -> float:
    """Return how far one element of a parameter moved, in the median parameter that moved."""
    moves = [
        tensor.moved / sqrt(max(tensor.numel, 1))
        for tensor in tensors
        if not tensor.buffer and isfinite(tensor.moved) and tensor.moved > 0
    ]
    return median(moves) if moves else 0.0


def scale_of(tensor: TensorPrint, typical: float) -> float:
    """Return what a tensor's differences are divided by: how far it moved, or would have moved if
    it moved as the others do. The gradient of a bias before a batch norm is only rounding, which
    depends on the precision, so its own movement would be too strict a scale."""
    like_others = 0.0 if tensor.buffer else typical * sqrt(max(tensor.numel, 1))
    candidates = (tensor.moved, like_others, ULP * tensor.norm)
    return max((value for value in candidates if isfinite(value)), default=0.0) or 1.0


def _series(ours: list[float | None], theirs: list[float | None]) -> Series:
    """Return distances relative to the value at that step, or to the median value if that is
    larger: a loss that crosses zero, or that of a memorised batch, is not precise relative to
    itself."""
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


BLOCK_NUMBERS = 2
"""Numbers of a sketch that belong to the same part of an output."""


def of_output_prints(ours: Sequence[OutputPrint], theirs: Sequence[OutputPrint]) -> float | None:
    """Return the largest distance over those tensors that can be compared; None if none can."""
    if [output.numel for output in ours] != [output.numel for output in theirs]:
        return None
    both = [_of_output(one, other) for one, other in zip(ours, theirs, strict=True)]
    return max((distance for distance in both if distance is not None), default=None)


def _of_output(one: OutputPrint, other: OutputPrint) -> float | None:
    """Return the distance; None if other elements are not finite, since then the prints cover other
    elements. The elements beside a mask are compared too, if both have as many."""
    if one.odd != other.odd or not (isfinite(one.norm) and isfinite(other.norm)):
        return None
    distance = _of_print(one, other)
    if one.rest is None or other.rest is None or one.rest.numel != other.rest.numel:
        return distance
    return max(distance, _of_print(one.rest, other.rest))


def _of_print(one: OutputPrint, other: OutputPrint) -> float:
    """Return the largest distance of the norm, the sketch and its twelfths. A twelfth is measured
    by the norm that it has on average, or by its own if that is larger: one that is all padding is
    not precise relative to itself."""
    if one.norm == other.norm and one.sketch == other.sketch:
        return 0.0
    size = one.norm or other.norm
    shares = [abs(one.norm - other.norm) / size]
    differences = [a - b for a, b in zip(one.sketch, other.sketch, strict=False)]
    shares.append(hypot(*differences) / size)
    usual = size / sqrt(max(len(differences) / BLOCK_NUMBERS, 1))
    for start in range(0, len(differences), BLOCK_NUMBERS):
        block = slice(start, start + BLOCK_NUMBERS)
        shares.append(hypot(*differences[block]) / max(usual, hypot(*one.sketch[block])))
    return max(shares)

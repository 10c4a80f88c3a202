"""How far each tensor of a candidate may lie from the baseline's: its first gradient, the parameter
after the second step, and after the last."""

from collections.abc import Callable, Sequence
from math import hypot, isfinite, sqrt
from statistics import median
from typing import Literal

from msgspec import Struct

from ridgeline.equality.trials import drift
from ridgeline.equality.trials.floors import ULP, Floor
from ridgeline.equality.trials.rounding import LOST, Moved
from ridgeline.records.trial import TensorPrint, Trial

BY_ROUNDING, APART = 0.02, 30.0
"""A tensor that rounding moves by a fiftieth of its own way, and 30 times as far as it moves the
median tensor, follows nothing but rounding: a bias before a batch norm, a bias of keys, both under
Adam, which takes a full step for any gradient. 5e-4 beside 1e-8 seen after a jitter of one ulp."""
FAINT, ANOTHER = 1e-3, 0.01
"""A first gradient a thousandth of the usual one, of which a jitter makes another: it is zero, but
for rounding. 1e-6 and 0.7 seen of a bias of keys, to whose shift a softmax is blind, and of parts
of one as little as 0.09; of what is not zero, moved by one ulp, 1e-5."""
SMALL = 8.0
"""One direction that Adam takes the other way is an eighth of the way of 16 elements."""
MOVES = 1e-5
"""Of the typical movement: below it a parameter has moved by rounding alone."""

When = Literal["gradients", "early", "tensors"]
Widened = Callable[[Moved], float]
"""What is allowed."""


class TensorBand(Struct, frozen=True, kw_only=True):
    name: str
    scale: float
    """What a difference is divided by."""
    allowed: float
    moves: bool
    """By more than rounding does."""
    by_rounding: bool = False
    """Follows rounding alone, and cannot be compared."""
    faint: frozenset[int] = frozenset()
    """Places of its sketch that do."""

    @property
    def lost(self) -> bool:
        """Allowed as much as its whole way, it is asked how far it went, not where."""
        return self.allowed >= LOST


class Faint(Struct, frozen=True):
    """What follows rounding alone, as first gradients and jittered trials show it."""

    whole: frozenset[str]
    parts: dict[str, frozenset[int]]


def prints_of(trial: Trial, when: When) -> tuple[TensorPrint, ...]:
    found: tuple[TensorPrint, ...] = getattr(trial, when)
    return found


def tensor_bands(
    when: When,
    repeats: Sequence[Trial],
    jitters: Sequence[Trial],
    floor: Floor,
    faint: Faint,
    widened: Widened,
    own: float,
) -> tuple[TensorBand, ...]:
    """`own`: times the distance of the baseline's repeats."""
    ours = prints_of(repeats[0], when)
    steps = {"gradients": 1, "early": 2, "tensors": len(repeats[0].watched)}[when]
    typical = drift.typical_move(ours)
    others = [_by_name(other, when) for other in repeats[1:]]
    moved = [(trial.jitter, _by_name(trial, when)) for trial in jitters]
    # One tensor's luck is not its band: none is held tighter than the jittered median.
    usual = [median(_drifts(ours, found, typical) or [0.0]) for _, found in moved]
    bands = []
    for tensor in ours:
        scale = drift.scale_of(tensor, typical)
        parts = faint.parts.get(tensor.name, frozenset())
        wide = [
            (jitter, max(_drift(tensor, found, scale, parts), all_))
            for (jitter, found), all_ in zip(moved, usual, strict=True)
        ]
        lowest = _lowest(tensor, floor, steps, bool(jitters))
        # The weights themselves are rounded at every step, which counts where they hardly move.
        norm = tensor.norm if isfinite(tensor.norm) else 0.0
        stored = 2 * ULP * norm * sqrt(steps + 1) / scale
        spread = [own * _drift(tensor, found, scale, parts) for found in others]
        bands.append(
            TensorBand(
                name=tensor.name,
                scale=scale,
                allowed=max(lowest + stored, widened(wide), *spread),
                moves=_moves(tensor, typical),
                by_rounding=not tensor.buffer and tensor.name in faint.whole,
                faint=parts,
            )
        )
    return tuple(bands)


def gradients_apart(one: Trial, other: Trial) -> list[float]:
    """First gradients, a parameter each."""
    typical = drift.typical_move(one.gradients)
    return _drifts(one.gradients, _by_name(other, "gradients"), typical)


def faint_of(base: Trial, jitters: Sequence[Trial], floor: Floor) -> Faint:
    whole, parts = _by_gradients(base, jitters)
    return Faint(whole | _followers(base, jitters, floor, parts), parts)


def _by_gradients(
    base: Trial, jitters: Sequence[Trial]
) -> tuple[frozenset[str], dict[str, frozenset[int]]]:
    least = min(jitters, key=lambda trial: trial.jitter, default=None)
    if least is None or least.jitter > 100 * ULP:
        return frozenset(), {}
    whole: set[str] = set()
    parts: dict[str, frozenset[int]] = {}
    found = _by_name(least, "gradients")
    typical = drift.typical_move(base.gradients)
    for tensor in base.gradients:
        other = found.get(tensor.name)
        if other is None or len(other.sketch) != len(tensor.sketch) or not tensor.sketch:
            continue
        size = max(tensor.moved, typical * sqrt(max(tensor.numel, 1)))
        places = _faint_places(tensor.sketch, other.sketch, size)
        if len(places) == len(tensor.sketch):
            whole.add(tensor.name)
        elif places:
            parts[tensor.name] = places
    return frozenset(whole), parts


def _faint_places(
    ours: tuple[float, ...], theirs: tuple[float, ...], size: float
) -> frozenset[int]:
    """Two by two, as they stand for one block of neighbours."""
    usual = size / sqrt(len(ours))
    places: set[int] = set()
    for at in range(0, len(ours) - 1, 2):
        own = hypot(*ours[at : at + 2])
        other = hypot(ours[at] - theirs[at], ours[at + 1] - theirs[at + 1])
        # A small tensor has fewer elements than blocks: nothing is neither faint nor loud.
        if own <= FAINT * usual and (other > ANOTHER * own or own == 0.0):
            places |= {at, at + 1}
    loud = any(ours[at] for at in places)
    return frozenset(places) if loud else frozenset()


def _followers(
    base: Trial, jitters: Sequence[Trial], floor: Floor, parts: dict[str, frozenset[int]]
) -> frozenset[str]:
    """Parameters that follow rounding alone, seen by where they went."""
    typical = drift.typical_move(base.tensors)
    names = set()
    for trial in jitters:
        found = _by_name(trial, "tensors")
        usual = median(_drifts(base.tensors, found, typical) or [0.0])
        least = max(BY_ROUNDING * min(trial.jitter / floor.unit, 1), APART * usual)
        for tensor in base.tensors:
            without = parts.get(tensor.name, frozenset())
            if _drift(tensor, found, drift.scale_of(tensor, typical), without) > least:
                names.add(tensor.name)
    return frozenset(names)


def _lowest(tensor: TensorPrint, floor: Floor, steps: int, perturbed: bool) -> float:
    few = 1 + SMALL / sqrt(max(tensor.numel, 1))
    if perturbed:
        return floor.buffer if tensor.buffer else floor.parameter * few
    # Buffers follow the activations, as losses do; parameters are sums over all steps, most of
    # which were early.
    grown = floor.grown(steps)
    if tensor.buffer:
        return max(min(floor.buffer * grown, floor.most), floor.buffer)
    return min(floor.parameter * sqrt(grown), max(floor.most, floor.parameter)) * few


def _moves(tensor: TensorPrint, typical: float) -> bool:
    least = MOVES * typical * sqrt(max(tensor.numel, 1))
    return tensor.moved > max(least, 2 * ULP * tensor.norm if tensor.buffer else least)


def _by_name(trial: Trial, when: When) -> dict[str, TensorPrint]:
    return {tensor.name: tensor for tensor in prints_of(trial, when)}


def _drift(
    tensor: TensorPrint,
    found: dict[str, TensorPrint],
    scale: float,
    without: frozenset[int] = frozenset(),
) -> float:
    other = found.get(tensor.name)
    return (drift.of_tensor(tensor, other, scale, without) or 0.0) if other else 0.0


def _drifts(
    ours: Sequence[TensorPrint], found: dict[str, TensorPrint], typical: float
) -> list[float]:
    return [
        _drift(tensor, found, drift.scale_of(tensor, typical))
        for tensor in ours
        if not tensor.buffer
    ]

"""How far a candidate may lie from the baseline: from how far the baseline's repeats lie from each
other, from what moving its inputs by rounding does to it, and from the kind of the change."""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import isfinite, sqrt
from statistics import median

from msgspec import Struct

from ridgeline.parity import drift
from ridgeline.parity.drift import Series
from ridgeline.parity.floors import DOUBT, DOUBT_KNOWN, ULP, Floor, floor_of
from ridgeline.records.parity import Alters
from ridgeline.records.trial import TensorPrint, Trial

OWN = 6.0
"""How far two repeats lie apart says little of a third: of normal values 9 % lie further than 6
times that at a given step, few where the widest of all steps before counts."""
PERTURBED = 16.0
"""A jitter moves the inputs alone, a reordering rounds anew in every layer."""
MATCHED = 8.0
"""A jitter of the size of the precision's rounding: autocast differed by up to 4 times as much."""
SCALED = 3.0
"""Where the jitter is of another size than the precision's rounding, it is scaled: less is then
added, as the scaling is already generous."""
BY_ROUNDING, APART = 0.02, 30.0
"""A tensor that rounding moves by a fiftieth of its own way, and 30 times as far as it moves the
median tensor, follows nothing but rounding: a bias before a batch norm, a bias of keys, both under
Adam, which takes a full step for any gradient. 5e-4 beside 1e-8 seen after a jitter of one ulp."""
CHAOS = 1.0
"""The most that is allowed where a jitter of its own size shows it: a late step of a program that
runs apart from any rounding tells nothing, and its early ones must."""
SMALL = 8.0
"""One direction that Adam takes the other way is an eighth of the way of 16 elements."""
MOVES = 1e-5
"""Of the typical movement: below it a parameter has moved by rounding alone."""


class TensorBand(Struct, frozen=True, kw_only=True):
    name: str
    scale: float
    """What a difference is divided by."""
    allowed: float
    moves: bool
    """By more than rounding does."""
    by_rounding: bool = False
    """Follows rounding alone, and cannot be compared."""


class Band(Struct, frozen=True, kw_only=True):
    losses: tuple[float, ...]
    """What is allowed at each step."""
    gradient_norms: tuple[float, ...]
    tensors: tuple[TensorBand, ...]
    evaluation: float
    way: float
    """For the way of the median parameter."""
    typical_move: float
    deterministic: bool
    """The repeats are equal in every number. Two equal ones do not prove it."""
    same_data: bool = True
    """The repeats saw the same batches."""
    doubt: float = 1.0
    """So many times the band is doubted and not refused; 1 where nothing is."""
    perturbed: bool = False
    """What rounding does to this program was seen, not assumed."""


def band_of(
    repeats: Sequence[Trial],
    perturbed: Sequence[Trial] = (),
    alters: Alters = "nothing",
    precision: str = "float32",
) -> Band:
    """Around `repeats[0]`."""
    floor = floor_of(alters, precision)
    base = repeats[0]
    # A jitter alters every number by rounding: it says nothing of a change that must alter none.
    every = [] if alters == "nothing" else [trial for trial in perturbed if trial.jitter > 0]
    jitters = _fitting(every, floor)
    known = floor.unit > ULP and bool(jitters) and _matches(floor, jitters[0].jitter)
    floor = floor.known() if known else floor
    followers = _followers(base, every, floor)
    if followers or (alters == "rounding" and not every):
        floor = floor.followed()

    def along(of: Callable[[Trial, Trial], Series], lowest: float) -> tuple[float, ...]:
        return _along(base, repeats, jitters, of, floor, lowest)

    data = [drift.of_batch_sums(one, other) for one, other in combinations(repeats, 2)]
    return Band(
        losses=along(drift.of_losses, floor.loss),
        gradient_norms=along(drift.of_gradient_norms, floor.gradient),
        tensors=_tensor_bands(repeats, jitters, floor, followers),
        way=_way(repeats, jitters, floor),
        evaluation=_evaluation(repeats, jitters, floor),
        typical_move=drift.typical_move(base.tensors),
        deterministic=all(_same(base, other) for other in repeats[1:]),
        doubt=1.0 if alters == "nothing" else DOUBT_KNOWN if known else DOUBT,
        perturbed=bool(jitters),
        same_data=all(value is None or value <= ULP for series in data for value in series),
    )


def _along(
    base: Trial,
    repeats: Sequence[Trial],
    jitters: Sequence[Trial],
    of: Callable[[Trial, Trial], Series],
    floor: Floor,
    lowest: float,
) -> tuple[float, ...]:
    own = [of(one, other) for one, other in combinations(repeats, 2)]
    moved = [(trial.jitter, of(base, trial)) for trial in jitters]
    allowed: list[float] = []
    for step in range(len(base.watched)):
        # One perturbed trial may miss a unit that switches at a rounding: 4e-5 of a loss at step
        # 11 under two honest changes, 1e-6 under the jitter. So the floor grows with it, too.
        floored = min(lowest * floor.grown(step), floor.most)
        here = [OWN * _at(series, step) for series in own]
        here += [_widened(floor, jitter, _at(series, step)) for jitter, series in moved]
        # Never back: paths that went apart may cross.
        before = allowed[-1] if allowed else 0.0
        allowed.append(max(floored, before, *here))
    return tuple(allowed)


def _fitting(jitters: Sequence[Trial], floor: Floor) -> list[Trial]:
    """Those of the precision's own size, else all that are smaller: one that is far larger than
    what the change rounds would let anything pass."""
    own = [trial for trial in jitters if _matches(floor, trial.jitter)]
    return own or [trial for trial in jitters if trial.jitter < floor.unit]


def _matches(floor: Floor, jitter: float) -> bool:
    return 0.25 <= jitter / floor.unit <= 4


def _factor(floor: Floor, jitter: float) -> float:
    if not _matches(floor, jitter):
        return SCALED * floor.unit / jitter
    return PERTURBED if floor.unit <= ULP else MATCHED


def _widened(floor: Floor, jitter: float, drifted: float) -> float:
    most = CHAOS if _matches(floor, jitter) else floor.most
    return min(_factor(floor, jitter) * drifted, most)


def _way(repeats: Sequence[Trial], jitters: Sequence[Trial], floor: Floor) -> float:
    base = repeats[0]
    own = [OWN * (drift.of_way(base, other) or 0.0) for other in repeats[1:]]
    wide = [_widened(floor, trial.jitter, drift.of_way(base, trial) or 0.0) for trial in jitters]
    steps = len(base.watched)
    grown = floor.way * (1 + steps / 8 if jitters else sqrt(floor.grown(steps)))
    return max(min(grown, floor.most), 0.0, *wide, *own)


def _followers(base: Trial, jitters: Sequence[Trial], floor: Floor) -> frozenset[str]:
    """Parameters that follow rounding alone."""
    typical = drift.typical_move(base.tensors)
    names = set()
    for trial in jitters:
        found = _by_name(trial)
        usual = median(_drifts(base, found, typical) or [0.0])
        least = max(BY_ROUNDING * min(trial.jitter / floor.unit, 1), APART * usual)
        for tensor in base.tensors:
            if _drift(tensor, found, drift.scale_of(tensor, typical)) > least:
                names.add(tensor.name)
    return frozenset(names)


def _at(series: Series, step: int) -> float:
    return (series[step] or 0.0) if step < len(series) else 0.0


def _tensor_bands(
    repeats: Sequence[Trial], jitters: Sequence[Trial], floor: Floor, followers: frozenset[str]
) -> tuple[TensorBand, ...]:
    base = repeats[0]
    typical = drift.typical_move(base.tensors)
    own = [_by_name(other) for other in repeats[1:]]
    moved = [(trial.jitter, _by_name(trial)) for trial in jitters]
    # One tensor's luck is not its band: none is held tighter than the jittered median.
    usual = [median(_drifts(base, found, typical) or [0.0]) for _, found in moved]
    bands = []
    for tensor in base.tensors:
        scale = drift.scale_of(tensor, typical)
        by_jitter = [_drift(tensor, found, scale) for _, found in moved]
        wide = [
            _widened(floor, jitter, max(here, all_))
            for (jitter, _), here, all_ in zip(moved, by_jitter, usual, strict=True)
        ]
        lowest = _lowest(tensor, floor, len(base.watched), bool(jitters))
        # The weights themselves are rounded at every step, which counts where they hardly move.
        norm = tensor.norm if isfinite(tensor.norm) else 0.0
        stored = 2 * ULP * norm * sqrt(len(base.watched) + 1) / scale
        spread = [OWN * _drift(tensor, found, scale) for found in own]
        allowed = max(lowest + stored, 0.0, *wide, *spread)
        bands.append(
            TensorBand(
                name=tensor.name,
                scale=scale,
                allowed=allowed,
                moves=_moves(tensor, typical),
                by_rounding=not tensor.buffer and tensor.name in followers,
            )
        )
    return tuple(bands)


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


def _evaluation(repeats: Sequence[Trial], jitters: Sequence[Trial], floor: Floor) -> float:
    base = repeats[0]
    own = [OWN * _most(drift.of_evaluation(base, other)) for other in repeats[1:]]
    wide = [
        _widened(floor, trial.jitter, _most(drift.of_evaluation(base, trial))) for trial in jitters
    ]
    grown = floor.evaluation * (1.0 if jitters else floor.grown(len(base.watched)))
    return max(min(grown, floor.most), 0.0, *wide, *own)


def _most(series: Series) -> float:
    return max((value for value in series if value is not None), default=0.0)


def _by_name(trial: Trial) -> dict[str, TensorPrint]:
    return {tensor.name: tensor for tensor in trial.tensors}


def _drift(tensor: TensorPrint, found: dict[str, TensorPrint], scale: float) -> float:
    other = found.get(tensor.name)
    return (drift.of_tensor(tensor, other, scale) or 0.0) if other else 0.0


def _drifts(base: Trial, found: dict[str, TensorPrint], typical: float) -> list[float]:
    return [
        _drift(tensor, found, drift.scale_of(tensor, typical))
        for tensor in base.tensors
        if not tensor.buffer
    ]


def _same(one: Trial, other: Trial) -> bool:
    return (one.watched, one.tensors, one.evaluation) == (
        other.watched,
        other.tensors,
        other.evaluation,
    )

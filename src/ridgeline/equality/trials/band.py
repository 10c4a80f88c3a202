"""How far a candidate may lie from the baseline: from how far the baseline's repeats lie from each
other, from what moving its inputs by rounding does to it, and from the kind of the change."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from math import sqrt
from statistics import median

from msgspec import Struct

from ridgeline.equality.trials import batch_sums, drift, rounding
from ridgeline.equality.trials.drift import Series
from ridgeline.equality.trials.floors import DATA, DOUBT, DOUBT_KNOWN, ULP, Floor, floor_of
from ridgeline.equality.trials.tensor_bands import (
    TensorBand,
    When,
    faint_of,
    gradients_apart,
    prints_of,
    tensor_bands,
)
from ridgeline.records.parity import Alters
from ridgeline.records.trial import Trial

FLOAT32_OUTPUTS = 1e-6
"""Of their norm: 3e-7 seen of a residual network and of a transformer."""
ALIKE = 0.5
"""Two repeats whose losses are near each other by luck say nothing of a third: gradients of other
weights, or of other masks, lie 1 apart and more, and have no luck."""
OWN = 6.0
"""How far two repeats lie apart says little of a third: of normal values 9 % lie further than 6
times that at a given step, few where the widest of all steps before counts."""


class Band(Struct, frozen=True, kw_only=True):
    losses: tuple[float, ...]
    """What is allowed at each step."""
    gradient_norms: tuple[float, ...]
    tensors: tuple[TensorBand, ...]
    """After the last step; `early` after the second, `gradients` of the first."""
    evaluation: float
    outputs: float
    """How far the model's first outputs may lie from float64, beside the baseline's own error."""
    way: float
    """For the way of the median parameter."""
    typical_move: float
    deterministic: bool
    """The repeats are equal in every number. Two equal ones do not prove it."""
    same_data: bool = True
    """The repeats saw the same batches."""
    data: float = DATA
    """How far sums of batches may lie apart."""
    repeatable: bool = True
    """They began alike: their first gradients have something in common."""
    doubt: float = 1.0
    """So many times the band is doubted and not refused; 1 where nothing is."""
    first_doubt: float = 1.0
    """The same of the first losses, before which nothing has grown: more than 1 only where a lower
    precision moves them by luck."""
    early: tuple[TensorBand, ...] = ()
    gradients: tuple[TensorBand, ...] = ()
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
    jitters = every if any(rounding.usable(floor, trial.jitter) for trial in every) else []
    known = floor.unit > ULP and rounding.known(floor, [trial.jitter for trial in jitters])
    faint = faint_of(base, every, floor)
    if faint.whole or (alters == "rounding" and not every):
        floor = floor.followed()
    # Adam's first ways are signs, which turn at any rounding, and a first gradient is of one batch,
    # in which a unit that switches counts: more is assumed of them.
    early, floor = floor, floor.known() if known else floor

    def along(of: Callable[[Trial, Trial], Series], lowest: float) -> tuple[float, ...]:
        return _along(base, repeats, jitters, of, floor, lowest)

    def of_tensors(when: When, floor: Floor) -> tuple[TensorBand, ...]:
        sketched = all(one.sketch for trial in jitters for one in prints_of(trial, when))
        wide = partial(rounding.allowed, floor, sketched=sketched)
        return tensor_bands(when, repeats, jitters, floor, faint, wide, OWN)

    return Band(
        losses=along(drift.of_losses, floor.loss),
        gradient_norms=along(drift.of_gradient_norms, floor.gradient),
        tensors=of_tensors("tensors", floor),
        early=of_tensors("early", early),
        gradients=of_tensors("gradients", early),
        way=_way(repeats, jitters, floor),
        evaluation=_evaluation(repeats, jitters, floor),
        outputs=_outputs(base, jitters, floor),
        typical_move=drift.typical_move(base.tensors),
        deterministic=all(_same(base, other) for other in repeats[1:]),
        doubt=1.0 if alters == "nothing" else DOUBT_KNOWN if known else DOUBT,
        first_doubt=DOUBT_KNOWN if known else 1.0,
        perturbed=bool(jitters),
        repeatable=all(_alike(base, other) for other in repeats[1:]),
        same_data=batch_sums.the_same(repeats, perturbed),
        data=batch_sums.allowed(base, jitters, floor),
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
        wide = rounding.allowed(floor, [(jitter, _at(series, step)) for jitter, series in moved])
        # Never back: paths that went apart may cross.
        before = allowed[-1] if allowed else 0.0
        allowed.append(max(floored, before, wide, *here))
    return tuple(allowed)


def _way(repeats: Sequence[Trial], jitters: Sequence[Trial], floor: Floor) -> float:
    base = repeats[0]
    own = [OWN * (drift.of_way(base, other) or 0.0) for other in repeats[1:]]
    wide = rounding.allowed(floor, [(t.jitter, drift.of_way(base, t) or 0.0) for t in jitters])
    steps = len(base.watched)
    grown = floor.way * (1 + steps / 8 if jitters else sqrt(floor.grown(steps)))
    return max(min(grown, floor.most), wide, *own)


def _at(series: Series, step: int) -> float:
    return (series[step] or 0.0) if step < len(series) else 0.0


def _evaluation(repeats: Sequence[Trial], jitters: Sequence[Trial], floor: Floor) -> float:
    base = repeats[0]
    own = [OWN * _most(drift.of_evaluation(base, other)) for other in repeats[1:]]
    moved = [(trial.jitter, _most(drift.of_evaluation(base, trial))) for trial in jitters]
    wide = rounding.allowed(floor, moved)
    grown = floor.evaluation * (1.0 if jitters else floor.grown(len(base.watched)))
    return max(min(grown, floor.most), wide, *own)


def _outputs(base: Trial, jitters: Sequence[Trial], floor: Floor) -> float:
    if floor.unit <= ULP:
        return FLOAT32_OUTPUTS
    moved = [(trial.jitter, _most(drift.of_outputs(base, trial))) for trial in jitters]
    return max(floor.evaluation, rounding.allowed(floor, moved))


def _most(series: Series) -> float:
    return max((value for value in series if value is not None), default=0.0)


def _alike(one: Trial, other: Trial) -> bool:
    drifts = gradients_apart(one, other)
    return not drifts or median(drifts) <= ALIKE


def _same(one: Trial, other: Trial) -> bool:
    return (one.watched, one.tensors, one.evaluation) == (
        other.watched,
        other.tensors,
        other.evaluation,
    )

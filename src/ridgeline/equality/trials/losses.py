"""Checks of losses and gradient norms, step by step, against the noise band, and of the steps after
the watched ones."""

from collections.abc import Callable, Iterator, Sequence
from math import hypot, isfinite, isnan, sqrt
from statistics import fmean, linear_regression, stdev

from ridgeline.equality.differences import small, steps_named
from ridgeline.equality.trials import distances
from ridgeline.equality.trials.distances import Series
from ridgeline.equality.trials.noise_bands import UNINFORMATIVE_BAND, Band
from ridgeline.equality.trials.parameters import tensors_that_should_move
from ridgeline.records.parity import MEANS, Check
from ridgeline.records.trial import LaterStep, Trial
from ridgeline.units import percent, plural

STEPS_BEFORE_GROWTH = 2
"""The first two steps follow no update or one. Rounding has not grown yet, so the tighter doubt
factor applies to them."""

_Step = tuple[float, float, int]
"""(difference, allowed difference, step)"""
MAX_INFORMATIVE_BAND = 0.1
"""A wider noise band would also pass losses that are no longer the same: the answer only mentions
the losses of steps whose band is at most this wide."""


def count_informative_steps(baseline: Trial, candidate: Trial, band: Band) -> int:
    """Return at how many steps the losses can show a difference."""
    drifts = distances.of_losses(baseline, candidate)
    both = enumerate(zip(drifts, band.losses, strict=False))
    return len(
        _informative([(value, limit, step) for step, (value, limit) in both if value is not None])
    )


def _informative(seen: list[_Step]) -> list[_Step]:
    if not any(value for value, _, _ in seen):
        return seen
    return [item for item in seen if item[1] <= MAX_INFORMATIVE_BAND] or seen


def check_trajectory(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    losses = distances.of_losses(baseline, candidate)
    doubts = (band.first_doubt_factor, band.doubt_factor)
    yield from _check_series("losses", "loss", losses, band.losses, doubts)
    norms = distances.of_gradient_norms(baseline, candidate)
    yield from _check_series("gradient norms", "gradient norm", norms, band.gradient_norms, doubts)


def _check_series(
    what: str,
    singular: str,
    drifts: Series,
    allowed: tuple[float, ...],
    doubts: tuple[float, float],
) -> Iterator[Check]:
    seen = [
        (value, limit, step)
        for step, (value, limit) in enumerate(zip(drifts, allowed, strict=False))
        if value is not None
    ]
    if not seen:
        return
    # If rounding alone makes another loss, a difference proves nothing: judge earlier steps.
    seen = [item for item in seen if item[1] < UNINFORMATIVE_BAND] or seen
    beyond = [item for item in seen if not item[0] <= item[1]]
    wrong = [
        item for item in beyond if not item[0] <= doubts[item[2] >= STEPS_BEFORE_GROWTH] * item[1]
    ]
    if beyond:
        value, limit, step = (wrong or beyond)[0]
        text = f"the {singular} at step {step + 1} is off by {small(value)}, allowed {small(limit)}"
    else:
        seen = _informative(seen)
        value, limit, step = max(seen)
        over = f"over {plural(len(seen), 'step')}"
        text = f"{what} equal to {small(value)} {over}, allowed {small(limit)} at step {step + 1}"
        text = text if value else f"{what} equal exactly {over}"
    yield Check(
        what=what, passed=not wrong, text=text, difference=value, allowed=limit, step=step,
        doubt=bool(beyond) and not wrong,
    )  # fmt: skip


MIN_FALL = 0.02
"""A smaller change between the first and the last third of the steps is noise, not a direction."""
MIN_STANDARD_ERRORS = 3.0
"""Losses of few steps on different samples rise and fall by chance. A difference of this many
standard errors, with 6 degrees of freedom left by the fitted line, occurs in 1 of 400 pairs whose
losses fall alike."""
MAX_LEVEL_DIFFERENCE = 0.25
"""Allowed relative difference of the mean losses on other samples of the same set: 0.24 was seen
when augmentation moved to the workers."""


def check_direction(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    """Check that the losses are finite, and that they fall if the baseline's do."""
    ours, theirs = _losses(baseline), _losses(candidate)
    if not theirs:
        return
    wrong = [step for step, loss in enumerate(theirs) if not isfinite(loss)]
    if wrong and all(isfinite(loss) for loss in ours):
        text = f"the loss is not finite at step {wrong[0] + 1}"
        yield Check(what="finite", passed=False, text=text, step=wrong[0])
        return
    if wrong or len(ours) < 3 or len(theirs) < 3 or not all(map(isfinite, ours)):
        return
    fell, falls = _fall(ours), _fall(theirs)
    by_chance = MIN_STANDARD_ERRORS * hypot(_error(ours), _error(theirs))
    passed = not (fell > MIN_FALL and falls < -MIN_FALL and fell - falls > by_chance)
    text = f"the losses {_trend(falls)}, those of the baseline {_trend(fell)}"
    yield Check(what="direction", passed=passed, text=text, difference=abs(fell - falls))


def check_level(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    """Check that the mean losses on other samples, drawn in the same way, are about the same."""
    ours = [loss for loss in _losses(baseline) if isfinite(loss)]
    theirs = [loss for loss in _losses(candidate) if isfinite(loss)]
    if len(ours) < 3 or len(theirs) < 3:
        return
    height = abs(fmean(ours)) or 1.0
    distance = abs(fmean(theirs) - fmean(ours)) / height
    allowed = MAX_LEVEL_DIFFERENCE + 2 * stdev(ours) / height / len(ours) ** 0.5
    text = f"{MEANS} {small(distance)} apart, allowed {small(allowed)}"
    yield Check(
        what=MEANS, passed=distance <= allowed, text=text, difference=distance, allowed=allowed
    )


def _losses(trial: Trial) -> list[float]:
    return [step.loss for step in trial.watched if step.loss is not None]


def _fall(losses: list[float]) -> float:
    first, last = _ends(losses)
    size = max(abs(first), abs(last))
    return (first - last) / size if size else 0.0


def _error(losses: list[float]) -> float:
    """Return the standard error of the fall, from how far the losses lie from a fitted line."""
    size = max(map(abs, _ends(losses)))
    if not size:
        return 0.0
    off = _residuals(losses)
    scatter = sqrt(sum(value * value for value in off) / (len(losses) - 2))
    return scatter * sqrt(2 / _third(losses)) / size


def _ends(losses: list[float]) -> tuple[float, float]:
    third = _third(losses)
    return fmean(losses[:third]), fmean(losses[-third:])


def _third(losses: list[float]) -> int:
    return max(len(losses) // 3, 1)


def _trend(fall: float) -> str:
    if abs(fall) <= MIN_FALL:
        return "stay level"
    return f"{'fall' if fall > 0 else 'rise'} by {percent(abs(fall))}"


MIN_LATER_LOSSES = 5
SCATTER_FACTOR = 4.0
"""Later losses may differ by this many times the scatter of the baseline's own losses about a line,
or the distance of its other runs."""
MIN_LOSS_SHARE = 0.02
"""Allowed difference in any case, as a share of the largest loss: losses that have fallen to a
thousandth of it differ by chance."""
_Count = Callable[[LaterStep], int | None]
_LATER_COUNTS: tuple[tuple[str, str, _Count], ...] = (
    ("later backwards", "backwards a step", lambda step: step.backwards),
    ("later updates", "optimizer steps applied", lambda step: step.updates),
    ("later forwards", "forwards a step", lambda step: step.forwards),
)
_INPUT_COUNT: tuple[str, str, _Count] = (
    "later inputs", "elements given to the model a step", lambda step: step.handed,
)  # fmt: skip


def check_later_steps(
    baseline: Sequence[Trial], candidate: Trial, band: Band, *, same_data: bool
) -> Iterator[Check]:
    """Check the steps after the watched ones. `baseline` has the repeats, then the perturbed runs;
    the candidate is compared with the first."""
    base = baseline[0]
    pairs = list(_pairs(base, candidate))
    for what, words, count in (*_LATER_COUNTS, *([_INPUT_COUNT] if same_data else [])):
        if pairs and not any(_varies(base, trial, count) for trial in baseline[1:]):
            yield from _check_count(what, words, pairs, count)
    yield from _check_later_losses(baseline, candidate)
    yield from _check_last_movement(baseline, candidate, band)


def _pairs(base: Trial, other: Trial) -> Iterator[tuple[LaterStep, LaterStep]]:
    by_number = {step.number: step for step in other.later}
    return ((ours, by_number[ours.number]) for ours in base.later if ours.number in by_number)


def _varies(base: Trial, trial: Trial, count: _Count) -> bool:
    """Return whether this count varies between runs of the baseline, as the length of an episode
    does."""
    return any(_differ(count(ours), count(theirs)) for ours, theirs in _pairs(base, trial))


def _differ(ours: int | None, theirs: int | None) -> bool:
    return ours is not None and theirs is not None and ours != theirs


def _check_count(
    what: str, words: str, pairs: Sequence[tuple[LaterStep, LaterStep]], count: _Count
) -> Iterator[Check]:
    wrong = [(ours, theirs) for ours, theirs in pairs if _differ(count(ours), count(theirs))]
    if not wrong:
        yield Check(what=what, passed=True, text=f"the same {words} in later steps")
        return
    ours, theirs = wrong[0]
    where = steps_named([step.number for step, _ in wrong])
    text = f"{words}: {count(theirs):,} where the baseline has {count(ours):,}, at {where}"
    yield Check(what=what, passed=False, text=text, step=ours.number)


def _check_later_losses(baseline: Sequence[Trial], candidate: Trial) -> Iterator[Check]:
    base = baseline[0]
    broken = [
        theirs.number
        for ours, theirs in _pairs(base, candidate)
        if theirs.broke and not any(_has_broken(trial, theirs.number) for trial in baseline)
    ]
    if broken:
        text = f"the loss is not finite at {steps_named(broken[:1])}"
        yield Check(what="later losses", passed=False, text=text, step=broken[0])
        return
    own = [step.loss for step in base.later if step.loss is not None]
    distance = _rms_difference(base, candidate)
    if distance is None or len(own) < MIN_LATER_LOSSES:
        return
    others = [_rms_difference(base, trial) or 0.0 for trial in baseline[1:]]
    largest = max(abs(loss) for loss in (*own, *_watched_losses(base)))
    allowed = SCATTER_FACTOR * max(_scatter(own), *others, 0.0) + MIN_LOSS_SHARE * largest
    height = abs(fmean(own)) or largest or 1.0
    text = f"later losses {small(distance / height)} apart, allowed {small(allowed / height)}"
    yield Check(
        what="later losses", passed=distance <= allowed, text=text, difference=distance / height,
        allowed=allowed / height,
    )  # fmt: skip


def _has_broken(trial: Trial, number: int) -> bool:
    """Return whether a loss was not finite at this step or before it."""
    return any(step.broke for step in trial.later if step.number <= number)


def _watched_losses(trial: Trial) -> list[float]:
    return [step.loss for step in trial.watched if step.loss is not None and abs(step.loss) < 1e300]


def _rms_difference(base: Trial, other: Trial) -> float | None:
    off = [
        ours.loss - theirs.loss
        for ours, theirs in _pairs(base, other)
        if ours.loss is not None and theirs.loss is not None
    ]
    return sqrt(fmean(value * value for value in off)) if len(off) >= MIN_LATER_LOSSES else None


def _scatter(losses: Sequence[float]) -> float:
    return sqrt(fmean(value * value for value in _residuals(losses)))


def _residuals(losses: Sequence[float]) -> list[float]:
    """Return how far each loss lies from the fitted line."""
    line = linear_regression(range(len(losses)), losses)
    return [loss - line.intercept - line.slope * step for step, loss in enumerate(losses)]


def _check_last_movement(
    baseline: Sequence[Trial], candidate: Trial, band: Band
) -> Iterator[Check]:
    """Check that the parameters still move in the last step. Only compared if both runs looked at
    the same step: heads may take turns."""
    if candidate.looked is None or candidate.looked != baseline[0].looked:
        return
    known = {name for trial in baseline for name in trial.stood}
    still = tensors_that_should_move(
        baseline[0], candidate, band, [n for n in candidate.stood if n not in known]
    )
    text = "the parameters still move in the last step"
    if still:
        more = f" ({len(still) - 1} more)" if len(still) > 1 else ""
        text = f"{still[0]} no longer moves at step {candidate.looked + 1}{more}"
    yield Check(what="later movement", passed=not still, text=text)


def check_finite(baseline: Trial, candidate: Trial) -> tuple[Check, str]:
    """Return the check that the same numbers are finite, and a note where both are not finite."""
    wrong = list(_finite_by_step(baseline, candidate)) + list(_finite_by_name(baseline, candidate))
    if wrong:
        return Check(what="finite", passed=False, text=wrong[0]), ""
    odd = [
        place
        for place, step in enumerate(baseline.watched)
        if _kind(step.loss) not in ("finite", "unseen")
    ]
    if odd:
        text = f"the loss is not finite at {steps_named(odd)}, in both"
        return Check(what="finite", passed=True, text=text), text
    return Check(what="finite", passed=True, text="every number is finite where it was"), ""


def _finite_by_step(baseline: Trial, candidate: Trial) -> Iterator[str]:
    for what in ("loss", "gradient_norm"):
        name = what.replace("_", " ")
        for place, (ours, theirs) in enumerate(
            zip(baseline.watched, candidate.watched, strict=False)
        ):
            before, after = _kind(getattr(ours, what)), _kind(getattr(theirs, what))
            if "unseen" in (before, after) or before == after:
                continue
            yield f"the {name} is {after} at step {place + 1} where the baseline's is {before}"


def _finite_by_name(baseline: Trial, candidate: Trial) -> Iterator[str]:
    by_name = {tensor.name: tensor for tensor in candidate.tensors}
    for tensor in baseline.tensors:
        other = by_name.get(tensor.name)
        if other is not None and isfinite(tensor.norm) != isfinite(other.norm):
            yield f"{tensor.name} is {_finite_words(other.norm)}"
    for ours, theirs in zip(baseline.evaluation, candidate.evaluation, strict=False):
        if isfinite(ours) != isfinite(theirs):
            yield f"the evaluation output is {_finite_words(theirs)}"


def _finite_words(value: float) -> str:
    if isfinite(value):
        return "finite where the baseline's is not"
    return "not finite where the baseline's is"


def _kind(value: float | None) -> str:
    if value is None:
        return "unseen"
    if isfinite(value):
        return "finite"
    return "NaN" if isnan(value) else "inf" if value > 0 else "-inf"

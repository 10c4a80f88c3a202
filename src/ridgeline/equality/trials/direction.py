"""What is asked where equality cannot be: finite losses that fall alike."""

from collections.abc import Iterator
from math import hypot, isfinite, sqrt
from statistics import fmean, linear_regression, stdev

from ridgeline.equality.trials.words import small
from ridgeline.records.parity import MEANS, Check
from ridgeline.records.trial import Trial
from ridgeline.units import percent

FALLS = 0.02
"""Less than this between the first and the last third of the steps is noise, not a direction."""
ERRORS = 3.0
"""Losses of few steps on samples of their own rise and fall by chance: so many standard errors of
a fall, with 6 steps left over from its line, are passed by 1 pair in 400 that fall alike."""
LEVEL = 0.25
"""Losses on other samples of the same set: 0.24 apart where augmentation moved to the workers."""


def direction(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    """Of the losses: finite, and falling where the baseline's fall."""
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
    by_chance = ERRORS * hypot(_error(ours), _error(theirs))
    passed = not (fell > FALLS and falls < -FALLS and fell - falls > by_chance)
    text = f"the losses {_way(falls)}, those of the baseline {_way(fell)}"
    yield Check(what="direction", passed=passed, text=text, difference=abs(fell - falls))


def level(baseline: Trial, candidate: Trial) -> Iterator[Check]:
    """Losses of other samples drawn in the same way lie about the same height."""
    ours = [loss for loss in _losses(baseline) if isfinite(loss)]
    theirs = [loss for loss in _losses(candidate) if isfinite(loss)]
    if len(ours) < 3 or len(theirs) < 3:
        return
    height = abs(fmean(ours)) or 1.0
    apart = abs(fmean(theirs) - fmean(ours)) / height
    allowed = LEVEL + 2 * stdev(ours) / height / len(ours) ** 0.5
    text = f"{MEANS} {small(apart)} apart, allowed {small(allowed)}"
    yield Check(what=MEANS, passed=apart <= allowed, text=text, difference=apart, allowed=allowed)


def _losses(trial: Trial) -> list[float]:
    return [step.loss for step in trial.watched if step.loss is not None]


def _fall(losses: list[float]) -> float:
    first, last = _ends(losses)
    size = max(abs(first), abs(last))
    return (first - last) / size if size else 0.0


def _error(losses: list[float]) -> float:
    """Of the fall: from how far the losses lie from a line through them."""
    size = max(map(abs, _ends(losses)))
    if not size:
        return 0.0
    line = linear_regression(range(len(losses)), losses)
    off = [loss - line.intercept - line.slope * step for step, loss in enumerate(losses)]
    scatter = sqrt(sum(value * value for value in off) / (len(losses) - 2))
    return scatter * sqrt(2 / _third(losses)) / size


def _ends(losses: list[float]) -> tuple[float, float]:
    third = _third(losses)
    return fmean(losses[:third]), fmean(losses[-third:])


def _third(losses: list[float]) -> int:
    return max(len(losses) // 3, 1)


def _way(fall: float) -> str:
    if abs(fall) <= FALLS:
        return "stay level"
    return f"{'fall' if fall > 0 else 'rise'} by {percent(abs(fall))}"

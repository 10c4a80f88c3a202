"""The steps after the watched ones: whether as much is done in them, and their losses go on alike.
A change that makes a program do less from some step on would be as fast as it likes."""

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from statistics import fmean, linear_regression

from ridgeline.equality.trials.band import Band
from ridgeline.equality.trials.state import stands
from ridgeline.equality.trials.words import small, steps_named
from ridgeline.records.parity import Check
from ridgeline.records.trial import LaterStep, Trial

FEW = 5
WIDE = 4.0
"""Times how far the baseline's own losses scatter about a line, or its other runs lie from it."""
LEAST = 0.02
"""Of its largest loss. Losses that have become a thousandth of it say nothing of how they did."""
_Of = Callable[[LaterStep], int | None]
_COUNTED: tuple[tuple[str, str, _Of], ...] = (
    ("later backwards", "backwards a step", lambda step: step.backwards),
    ("later updates", "optimizer steps applied", lambda step: step.updates),
    ("later forwards", "forwards a step", lambda step: step.forwards),
)
_HANDED: tuple[str, str, _Of] = (
    "later inputs", "elements given to the model a step", lambda step: step.handed,
)  # fmt: skip


def later(
    baseline: Sequence[Trial], candidate: Trial, band: Band, *, same_data: bool
) -> Iterator[Check]:
    """`baseline`: its repeats and its jittered runs, the one to compare with first."""
    base = baseline[0]
    pairs = list(_pairs(base, candidate))
    for what, words, of in (*_COUNTED, *([_HANDED] if same_data else [])):
        if pairs and not any(_other(base, trial, of) for trial in baseline[1:]):
            yield from _as_many(what, words, pairs, of)
    yield from _losses(baseline, candidate)
    yield from _standing(baseline, candidate, band)


def _pairs(base: Trial, other: Trial) -> Iterator[tuple[LaterStep, LaterStep]]:
    found = {step.number: step for step in other.later}
    return ((one, found[one.number]) for one in base.later if one.number in found)


def _other(base: Trial, trial: Trial, of: _Of) -> bool:
    """The program itself varies in this: an episode is as long as it is."""
    return any(_apart(of(one), of(other)) for one, other in _pairs(base, trial))


def _apart(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one != other


def _as_many(
    what: str, words: str, pairs: Sequence[tuple[LaterStep, LaterStep]], of: _Of
) -> Iterator[Check]:
    wrong = [(one, other) for one, other in pairs if _apart(of(one), of(other))]
    if not wrong:
        yield Check(what=what, passed=True, text=f"the same {words} in later steps")
        return
    ours, theirs = wrong[0]
    where = steps_named([one.number for one, _ in wrong])
    text = f"{words}: {of(theirs):,} where the baseline has {of(ours):,}, at {where}"
    yield Check(what=what, passed=False, text=text, step=ours.number)


def _losses(baseline: Sequence[Trial], candidate: Trial) -> Iterator[Check]:
    base = baseline[0]
    broke = [
        theirs.number
        for ours, theirs in _pairs(base, candidate)
        if theirs.broke and not any(_broke(trial, theirs.number) for trial in baseline)
    ]
    if broke:
        text = f"the loss is not finite at {steps_named(broke[:1])}"
        yield Check(what="later losses", passed=False, text=text, step=broke[0])
        return
    own = [one.loss for one in base.later if one.loss is not None]
    apart = _rms(base, candidate)
    if apart is None or len(own) < FEW:
        return
    others = [_rms(base, trial) or 0.0 for trial in baseline[1:]]
    largest = max(abs(loss) for loss in (*own, *_watched(base)))
    allowed = WIDE * max(_scatter(own), *others, 0.0) + LEAST * largest
    height = abs(fmean(own)) or largest or 1.0
    text = f"later losses {small(apart / height)} apart, allowed {small(allowed / height)}"
    yield Check(
        what="later losses", passed=apart <= allowed, text=text, difference=apart / height,
        allowed=allowed / height,
    )  # fmt: skip


def _broke(trial: Trial, number: int) -> bool:
    """At this step or before it."""
    return any(step.broke for step in trial.later if step.number <= number)


def _watched(trial: Trial) -> list[float]:
    return [step.loss for step in trial.watched if step.loss is not None and abs(step.loss) < 1e300]


def _rms(base: Trial, other: Trial) -> float | None:
    off = [
        ours.loss - theirs.loss
        for ours, theirs in _pairs(base, other)
        if ours.loss is not None and theirs.loss is not None
    ]
    return sqrt(fmean(one * one for one in off)) if len(off) >= FEW else None


def _scatter(losses: Sequence[float]) -> float:
    line = linear_regression(range(len(losses)), losses)
    off = [loss - line.intercept - line.slope * at for at, loss in enumerate(losses)]
    return sqrt(fmean(one * one for one in off))


def _standing(baseline: Sequence[Trial], candidate: Trial, band: Band) -> Iterator[Check]:
    """In the last step, where it is the same one: heads may take turns."""
    if candidate.looked is None or candidate.looked != baseline[0].looked:
        return
    known = {name for trial in baseline for name in trial.stood}
    still = stands(baseline[0], candidate, band, [n for n in candidate.stood if n not in known])
    text = "the parameters still move in the last step"
    if still:
        more = f" ({len(still) - 1} more)" if len(still) > 1 else ""
        text = f"{still[0]} does not move any more at step {candidate.looked + 1}{more}"
    yield Check(what="later movement", passed=not still, text=text)

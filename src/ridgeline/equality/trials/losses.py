"""Losses and gradient norms, step by step, against the band."""

from collections.abc import Callable, Iterator, Sequence
from math import hypot, isfinite, isnan, sqrt
from statistics import fmean, linear_regression, stdev

from ridgeline.equality.differences import small, steps_named
from ridgeline.equality.trials import distances
from ridgeline.equality.trials.distances import Series
from ridgeline.equality.trials.noise_bands import LOST, Band
from ridgeline.equality.trials.parameters import stands
from ridgeline.records.parity import MEANS, Check
from ridgeline.records.trial import LaterStep, Trial
from ridgeline.units import percent, plural

EARLY = 2
"""Steps that no update, or one, has come before: nothing has grown yet, and less is doubted."""

_Step = tuple[float, float, int]
"""Difference, what is allowed, which."""
TELLS = 0.1
"""A wider band passes what is no longer the same: losses are spoken of up to there."""


def steps_told(baseline: Trial, candidate: Trial, band: Band) -> int:
    """How many losses tell something."""
    drifts = distances.of_losses(baseline, candidate)
    both = enumerate(zip(drifts, band.losses, strict=False))
    return len(_told([(value, limit, at) for at, (value, limit) in both if value is not None]))


def _told(seen: list[_Step]) -> list[_Step]:
    if not any(value for value, _, _ in seen):
        return seen
    return [item for item in seen if item[1] <= TELLS] or seen


def trajectory(baseline: Trial, candidate: Trial, band: Band) -> Iterator[Check]:
    losses = distances.of_losses(baseline, candidate)
    doubts = (band.first_doubt, band.doubt)
    yield from _along("losses", "loss", losses, band.losses, doubts)
    norms = distances.of_gradient_norms(baseline, candidate)
    yield from _along("gradient norms", "gradient norm", norms, band.gradient_norms, doubts)


def _along(
    what: str, one: str, drifts: Series, allowed: tuple[float, ...], doubts: tuple[float, float]
) -> Iterator[Check]:
    seen = [
        (value, limit, step)
        for step, (value, limit) in enumerate(zip(drifts, allowed, strict=False))
        if value is not None
    ]
    if not seen:
        return
    # Where rounding alone makes another loss, another loss is not wrong: earlier ones tell.
    seen = [item for item in seen if item[1] < LOST] or seen
    beyond = [item for item in seen if not item[0] <= item[1]]
    wrong = [item for item in beyond if not item[0] <= doubts[item[2] >= EARLY] * item[1]]
    if beyond:
        value, limit, step = (wrong or beyond)[0]
        text = f"the {one} at step {step + 1} is off by {small(value)}, allowed {small(limit)}"
    else:
        seen = _told(seen)
        value, limit, step = max(seen)
        over = f"over {plural(len(seen), 'step')}"
        text = f"{what} equal to {small(value)} {over}, allowed {small(limit)} at step {step + 1}"
        text = text if value else f"{what} equal exactly {over}"
    yield Check(
        what=what, passed=not wrong, text=text, difference=value, allowed=limit, step=step,
        doubt=bool(beyond) and not wrong,
    )  # fmt: skip


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
    text = f"the losses {_trend(falls)}, those of the baseline {_trend(fell)}"
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


def _trend(fall: float) -> str:
    if abs(fall) <= FALLS:
        return "stay level"
    return f"{'fall' if fall > 0 else 'rise'} by {percent(abs(fall))}"


FEW = 5
WIDE = 4.0
"""Times how far the baseline's own losses scatter about a line, or its other runs lie from it."""
LEAST = 0.02
"""Of its largest loss. Losses that have become a thousandth of it say nothing of how they did."""
_Of = Callable[[LaterStep], int | None]
_LATER_COUNTS: tuple[tuple[str, str, _Of], ...] = (
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
    for what, words, of in (*_LATER_COUNTS, *([_HANDED] if same_data else [])):
        if pairs and not any(_other(base, trial, of) for trial in baseline[1:]):
            yield from _as_many(what, words, pairs, of)
    yield from _later_losses(baseline, candidate)
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


def _later_losses(baseline: Sequence[Trial], candidate: Trial) -> Iterator[Check]:
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


def finite(baseline: Trial, candidate: Trial) -> tuple[Check, str]:
    """The check, and a note where both are equally not finite."""
    wrong = list(_by_step(baseline, candidate)) + list(_finite_by_name(baseline, candidate))
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


def _by_step(baseline: Trial, candidate: Trial) -> Iterator[str]:
    for what in ("loss", "gradient_norm"):
        name = what.replace("_", " ")
        for place, (ours, theirs) in enumerate(
            zip(baseline.watched, candidate.watched, strict=False)
        ):
            one, other = _kind(getattr(ours, what)), _kind(getattr(theirs, what))
            if "unseen" in (one, other) or one == other:
                continue
            yield f"the {name} is {other} at step {place + 1} where the baseline's is {one}"


def _finite_by_name(baseline: Trial, candidate: Trial) -> Iterator[str]:
    found = {tensor.name: tensor for tensor in candidate.tensors}
    for tensor in baseline.tensors:
        other = found.get(tensor.name)
        if other is not None and isfinite(tensor.norm) != isfinite(other.norm):
            yield f"{tensor.name} is {_against(other.norm)}"
    for ours, theirs in zip(baseline.evaluation, candidate.evaluation, strict=False):
        if isfinite(ours) != isfinite(theirs):
            yield f"the evaluation output is {_against(theirs)}"


def _against(value: float) -> str:
    if isfinite(value):
        return "finite where the baseline's is not"
    return "not finite where the baseline's is"


def _kind(value: float | None) -> str:
    if value is None:
        return "unseen"
    if isfinite(value):
        return "finite"
    return "NaN" if isnan(value) else "inf" if value > 0 else "-inf"

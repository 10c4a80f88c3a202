"""Two sets of changes against each other, in alternating processes, until one is known to be better
or it is known not to matter."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.bench import Bench
from ridgeline.optimization.measure import STEP, Measure, step_ns, timed, typical_ms
from ridgeline.records.facts import Ratio, Reason, Verdict, because
from ridgeline.records.optimized import SearchCode
from ridgeline.records.trial import Asked, Trial
from ridgeline.statistics.pooled import LOOKS, MOST, Pool

DOUBTFUL_REACH = 3.0
"""Times as far from nothing as its interval reaches: 6 standard errors are no luck."""
BOTH = 1.5
"""The same, of both looks taken together: 3 standard errors."""


def doubtful(ratio: Ratio) -> bool:
    return _log_gain(ratio) < DOUBTFUL_REACH * _log_reach(ratio)


def still_there(first: Ratio, again: Ratio) -> bool:
    """Of two contests of the same: whether they tell it together. Each counts by its pairs."""
    pairs = first.pairs + again.pairs
    gain = (first.pairs * _log_gain(first) + again.pairs * _log_gain(again)) / pairs
    reach = math.hypot(*(one.pairs * _log_reach(one) for one in (first, again))) / pairs
    return gain >= BOTH * reach


def _log_gain(ratio: Ratio) -> float:
    return math.log(ratio.value)


def _log_reach(ratio: Ratio) -> float:
    """Of the interval, to one side."""
    return (math.log(ratio.ci_high) - math.log(ratio.ci_low)) / 2


ContestOutcome = Literal["FASTER", "SLOWER", "SAME", "UNDECIDED", "FAILED", "REFUSED", "CUT"]
"""A verdict, or how the contest ended without one: FAILED, a trial left no record; REFUSED, the
results differ or nothing was changed; CUT, the time was over."""
MATTERS = math.log(1.02)
BY_ONE_PAIR, BY_ONE_STEADY = math.log(1.5), math.log(1.1)
"""What one pair may show. The spread is the unchanged program's, and what was kept may waver more:
a loader that held a step of 23 ms steady gave 2.9 and 3.9 ms where the step had become short. Steps
of a GPU that wait for no input do not."""
WAITS = 0.02
"""Of the step, for input."""
NOT_WORTH = math.log(1.03)
"""Where even the upper end of the interval gains less, no more pairs are run."""
FAR = 2.0
HOPELESS = math.log(1.25)
"""A first pair this much slower is not tried again."""
LEVEL, FUTILE = 0.05, 0.10
DISTURBED, KNOWN = 1.5, 2
"""A trial that takes so many times as long as the slowest of at least two before it is run again:
something else ran meanwhile. A baseline of 109 ms, where four had 18, made 2.22 × of 1.15."""
RECENT = 4
"""Trials ago: one of the same set that is not older serves as half of a first pair."""


class Arms:
    """The bench, and the trials it ran."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._ran: list[tuple[tuple[Asked, ...], Outcome]] = []
        self._decided = 0

    def trial(self, fixes: tuple[Asked, ...], *, fresh: bool = False) -> Outcome:
        found = self.bench.trial(fixes, fresh=fresh)
        if self._disturbed(fixes, found) and self.bench.cost_s(fixes) < self.bench.left_s():
            again = self.bench.trial(fixes, fresh=True)
            found = again if again.trial is not None else found
        if found.trial is not None:
            self.saw(fixes, found)
        return found

    def _disturbed(self, fixes: tuple[Asked, ...], found: Outcome) -> bool:
        """Asked once: what comes then counts."""
        same = [one for of, one in self._ran if of == fixes and not one.remembered]
        known = [ns for one in same if one.trial is not None and (ns := step_ns(one.trial))]
        now = step_ns(found.trial) if found.trial is not None else None
        if now is None or found.remembered or len(known) < KNOWN:
            return False
        return now > DISTURBED * max(known)

    def saw(self, fixes: tuple[Asked, ...], found: Outcome) -> None:
        self._ran.append((fixes, found))

    def latest(self, fixes: tuple[Asked, ...]) -> Trial | None:
        return next((found.trial for of, found in reversed(self._ran) if of == fixes), None)

    def decided(self) -> None:
        """By the trials so far, what is kept: luck may have. One of 2.9 ms where 4.6 are usual made
        the next four changes look 0.65 × as fast."""
        self._decided = len(self._ran)

    def recent(self, fixes: tuple[Asked, ...]) -> Outcome | None:
        first = max(len(self._ran) - RECENT, self._decided)
        return next((found for of, found in reversed(self._ran[first:]) if of == fixes), None)

    def beside(self, fixes: tuple[Asked, ...], other: Outcome) -> Outcome | None:
        """The latest of the same call as the other: what was remembered is of another time."""
        every = [found for of, found in self._ran if of == fixes]
        return next((one for one in reversed(every) if one.remembered == other.remembered), None)


class Contest(Struct, frozen=True, kw_only=True):
    outcome: ContestOutcome
    reason: Reason
    ratio: Ratio | None = None
    before: tuple[Trial, ...] = ()
    after: tuple[Trial, ...] = ()
    spent_s: float = 0.0
    bound: float | None = None
    """The bound of the changes as it was before they were tried; None if there was none."""

    @property
    def verdict(self) -> Verdict:
        """The verdict that a rung keeps: INVALID if the contest ended without one.

        A first pair so much slower that no second was run is UNDECIDED if its interval reaches 1.
        """
        if self.reason.code == SearchCode.TOO_SLOW:
            return "FASTER"  # by what the goal measures; the step became too long
        if self.outcome == "FAILED" or self.outcome == "REFUSED" or self.outcome == "CUT":
            return "INVALID"
        if self.outcome == "SLOWER" and self.ratio is not None and self.ratio.ci_high >= 1:
            return "UNDECIDED"
        return self.outcome

    @property
    def exceeds_bound(self) -> bool:
        """Whether the changes gained more than the bound allowed, so that the bound was wrong."""
        if self.ratio is None or self.bound is None:
            return False
        return self.ratio.ci_low > self.bound

    @property
    def step_ms(self) -> tuple[float, float]:
        return typical_ms(self.before), typical_ms(self.after)


class Rules(Struct, frozen=True, kw_only=True):
    """How a contest is held."""

    measure: Measure = STEP
    least: int = 1
    most: int = MOST
    fresh: bool = False
    """In new processes alone."""
    so_far: "Contest | None" = None
    """Pairs of an earlier contest of the same two, that are gone on with."""
    refuse: Callable[[Trial], Reason | None] = lambda trial: None
    """Why the first trial of the second set is reason enough to end it: nothing was changed, other
    results."""
    go_on: Callable[[], bool] = lambda: True
    """Whether there is time for another pair."""
    on_pair: Callable[[int, float], None] = lambda number, ratio: None


def contest(
    arms: Arms, pool: Pool, before: tuple[Asked, ...], after: tuple[Asked, ...], rules: Rules
) -> Contest:
    """How many times as good `after` is. The order turns around from pair to pair."""
    earlier = rules.so_far
    old: list[Trial] = list(earlier.before) if earlier is not None else []
    new: list[Trial] = list(earlier.after) if earlier is not None else []
    differences = [_difference(*pair, rules.measure) for pair in zip(old, new, strict=True)]
    while len(differences) < rules.most:
        number = len(differences)
        halves: dict[bool, Outcome] = {}
        for fixes in (before, after) if number % 2 == 0 else (after, before):
            recent = arms.recent(fixes) if number == 0 and not rules.fresh else None
            found = recent or arms.trial(fixes, fresh=rules.fresh)
            if found.cut and number:
                return _judged(pool, differences, old, new)
            if found.trial is None or _value(found.trial, rules.measure) is None:
                return _failed(found, fixes is after, old, new, rules.measure)
            halves[fixes is after] = found
        for trials, trial in zip((old, new), _of_one_call(arms, before, halves), strict=True):
            trials.append(trial)
        if number == 0 and (refusal := rules.refuse(new[0])) is not None:
            return Contest(outcome="REFUSED", reason=refusal, before=tuple(old), after=tuple(new))
        differences.append(_difference(old[-1], new[-1], rules.measure))
        rules.on_pair(len(differences), math.exp(sum(differences) / len(differences)))
        if len(differences) >= rules.least and _enough(pool, differences, rules, _steady(old, new)):
            break
    judged = _judged(pool, differences, old, new)
    if earlier is None:  # whose pairs it has learnt from already
        pool.others(differences)
    return judged


def _of_one_call(
    arms: Arms, before: tuple[Asked, ...], halves: dict[bool, Outcome]
) -> tuple[Trial, Trial]:
    """A half that an earlier call has run and one that this one has are no pair: a machine is
    another an hour later."""
    one, other = halves[False], halves[True]
    if one.remembered != other.remembered:
        like = arms.beside(before, other)
        if like is None and not other.remembered:
            like = arms.trial(before, fresh=True)
        one = like if like is not None and like.trial is not None else one
    assert one.trial is not None
    assert other.trial is not None
    return one.trial, other.trial


def _enough(pool: Pool, differences: Sequence[float], rules: Rules, steady: bool) -> bool:
    if _hopeless(pool, differences):
        return True
    level = LOOKS.get(len(differences))
    if level is not None and _verdict(pool, differences, level, steady):
        return True
    return pool.interval(differences, FUTILE)[2] < NOT_WORTH or not rules.go_on()


def _hopeless(pool: Pool, differences: Sequence[float]) -> bool:
    """By its first pair: far worse, also for a machine that wavers."""
    return len(differences) == 1 and differences[0] < -max(HOPELESS, FAR * pool.spread)


def _value(trial: Trial, measure: Measure) -> float | None:
    return measure.of(trial) if timed(trial) else None


def _difference(old: Trial, new: Trial, measure: Measure) -> float:
    one, other = measure.of(old), measure.of(new)
    assert one is not None
    assert other is not None
    return math.log(one / other)


def _steady(old: Sequence[Trial], new: Sequence[Trial]) -> bool:
    every = (*old, *new)
    return all(one.device == "cuda" and (one.input_share or 0.0) < WAITS for one in every)


def _verdict(
    pool: Pool, differences: Sequence[float], level: float, steady: bool
) -> Verdict | None:
    mean, low, high = pool.interval(differences, level)
    by_one = BY_ONE_STEADY if steady else BY_ONE_PAIR
    if low > 0 and mean >= (MATTERS if len(differences) > 1 else by_one):
        return "FASTER"
    if high < 0 and mean <= -MATTERS:
        return "SLOWER"
    return "SAME" if low >= -MATTERS and high <= MATTERS else None


def _judged(
    pool: Pool, differences: list[float], old: Sequence[Trial], new: Sequence[Trial]
) -> Contest:
    mean, low, high = pool.interval(differences, LEVEL)
    level = LOOKS.get(len(differences), LEVEL / 2)
    verdict = _verdict(pool, differences, level, _steady(old, new)) or "UNDECIDED"
    if _hopeless(pool, differences):
        verdict = "SLOWER"
    ratio = Ratio(
        value=math.exp(mean), ci_low=math.exp(low), ci_high=_exp(high), pairs=len(differences)
    )
    outcome: ContestOutcome = "UNDECIDED" if verdict == "INVALID" else verdict
    return Contest(
        outcome=outcome, reason=_measured(outcome, ratio), ratio=ratio, before=tuple(old),
        after=tuple(new),
    )  # fmt: skip


def _exp(value: float) -> float:
    return math.exp(min(value, 50.0))


def _measured(outcome: ContestOutcome, ratio: Ratio) -> Reason:
    return because_of_ratio(SearchCode[outcome], ratio)


def because_of_ratio(code: SearchCode, ratio: Ratio) -> Reason:
    """Return the reason `code` with the ratio, its interval and its pairs as facts."""
    return because(
        code, value=ratio.value, ci_low=ratio.ci_low, ci_high=ratio.ci_high, pairs=ratio.pairs
    )


def _failed(
    found: Outcome, mine: bool, old: list[Trial], new: list[Trial], measure: Measure
) -> Contest:
    if found.failure is not None:
        reason = found.failure
    elif found.trial is not None and not timed(found.trial):
        reason = because(SearchCode.TOO_FEW_STEPS)
    else:
        reason = because(SearchCode.NO_MEASURE, measure=measure.name)
    if not mine and not found.cut:
        reason = because(SearchCode.BASELINE_FAILED, cause=reason)
    return Contest(
        outcome="CUT" if found.cut else "FAILED", reason=reason, before=tuple(old),
        after=tuple(new),
    )  # fmt: skip

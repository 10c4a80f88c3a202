"""A contest: two sets of fixes against each other in alternating processes, until one is known to
be better, or the difference is known not to matter."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.bench import Bench
from ridgeline.optimization.measure import STEP, Measure, is_timed, typical_ms, undisturbed_ns
from ridgeline.records.facts import Ratio, Reason, Verdict, because
from ridgeline.records.optimized import SearchCode
from ridgeline.records.trial import Asked, Trial
from ridgeline.statistics.pooled import LOOKS, MAX_PAIRS, Pool

ContestOutcome = Literal["FASTER", "SLOWER", "SAME", "UNDECIDED", "FAILED", "REFUSED", "CUT"]
"""A verdict, or how the contest ended without one: FAILED, a trial left no record; REFUSED, the
results differ or nothing was changed; CUT, the time was over."""
MIN_LOG_GAIN = math.log(1.02)
"""A smaller gain does not matter."""
MIN_ONE_PAIR_LOG_GAIN, MIN_STEADY_ONE_PAIR_LOG_GAIN = math.log(1.5), math.log(1.1)
"""The gain from which one pair is enough. The spread is that of the unchanged program, and what was
kept may vary more: a loader that held a step of 23 ms steady gave 2.9 and 3.9 ms once the step had
become short. Steps of a GPU that wait for no input do not vary so, and need less."""
MAX_STEADY_INPUT_SHARE = 0.02
MIN_WORTH_LOG_GAIN = math.log(1.03)
"""If even the upper end of the interval gains less, no more pairs are run."""
HOPELESS_SPREADS, HOPELESS_LOG_LOSS = 2.0, math.log(1.25)
"""A first pair that is slower by both, the spread times the first number and the second number, is
not tried again."""
LEVEL, FUTILITY_LEVEL = 0.05, 0.10
"""Levels of the interval that is reported, and of the one that shows whether more pairs are worth
running."""
MAX_USUAL_FACTOR, MIN_USUAL_TRIALS = 1.5, 2
"""A trial that takes longer than this multiple of the slowest of at least two before it is run
again, because something else ran meanwhile. A baseline of 109 ms, where four had 18, made 2.22 × of
1.15."""
RECENT_TRIALS = 4
"""A trial of the same set among this many latest ones serves as half of a first pair."""
DOUBTFUL_REACHES = 3.0
"""A gain is doubtful if it is smaller than its interval's half-width times this, which is 6
standard errors. Of 100 fixes that gain nothing one or two look better by luck, and what a machine
does for a minute is in all pairs of that minute."""
CONFIRMED_REACHES = 1.5
"""The same for two contests taken together: 3 standard errors."""


class TrialHistory:
    """The bench, and the trials it has run."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._ran: list[tuple[tuple[Asked, ...], Outcome]] = []
        self._decided = 0
        """How many trials had run when a fix was last kept."""

    def trial(self, fixes: tuple[Asked, ...], *, fresh: bool = False) -> Outcome:
        """Run a trial, and once more if something disturbed it."""
        outcome = self.bench.trial(fixes, fresh=fresh)
        if self._was_disturbed(fixes, outcome) and self.bench.cost_s(fixes) < self.bench.left_s():
            again = self.bench.trial(fixes, fresh=True)
            outcome = again if again.trial is not None else outcome
        if outcome.trial is not None:
            self.add(fixes, outcome)
        return outcome

    def _was_disturbed(self, fixes: tuple[Asked, ...], outcome: Outcome) -> bool:
        same = [one for one in self._of(fixes) if not one.remembered]
        known = [ns for one in same if one.trial is not None and (ns := undisturbed_ns(one.trial))]
        now = undisturbed_ns(outcome.trial) if outcome.trial is not None else None
        if now is None or outcome.remembered or len(known) < MIN_USUAL_TRIALS:
            return False
        return now > MAX_USUAL_FACTOR * max(known)

    def add(self, fixes: tuple[Asked, ...], outcome: Outcome) -> None:
        self._ran.append((fixes, outcome))

    def latest(self, fixes: tuple[Asked, ...]) -> Trial | None:
        outcomes = self._of(fixes)
        return outcomes[-1].trial if outcomes else None

    def fix_kept(self) -> None:
        """Note that the trials so far have decided what is kept: luck may have helped, and they are
        not used again. A trial of 2.9 ms where 4.6 are usual made the next four fixes look 0.65 ×
        as fast."""
        self._decided = len(self._ran)

    def recent(self, fixes: tuple[Asked, ...]) -> Outcome | None:
        """Return a recent trial of this set that has decided nothing yet."""
        first = max(len(self._ran) - RECENT_TRIALS, self._decided)
        outcomes = self._of(fixes, first)
        return outcomes[-1] if outcomes else None

    def of_same_call(self, fixes: tuple[Asked, ...], other: Outcome) -> Outcome | None:
        """Return the latest trial of this set from the call that `other` is from."""
        outcomes = [one for one in self._of(fixes) if one.remembered == other.remembered]
        return outcomes[-1] if outcomes else None

    def _of(self, fixes: tuple[Asked, ...], first: int = 0) -> list[Outcome]:
        return [outcome for ran, outcome in self._ran[first:] if ran == fixes]


class Contest(Struct, frozen=True, kw_only=True):
    """Says what a contest came to."""

    outcome: ContestOutcome
    reason: Reason
    ratio: Ratio | None = None
    before: tuple[Trial, ...] = ()
    after: tuple[Trial, ...] = ()
    spent_s: float = 0.0
    between: Ratio | None = None
    """The ratio between fresh processes, where `ratio` was measured in one; else None."""
    raced_ms: tuple[float, float] | None = None
    """The steps of both sets in that process."""
    bound: float | None = None
    """The bound of the fixes as it was before they were tried; None if there was none."""

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
        """Whether the fixes gained more than the bound allowed, so that the bound was wrong."""
        if self.ratio is None or self.bound is None:
            return False
        return self.ratio.ci_low > self.bound

    @property
    def step_ms(self) -> tuple[float, float]:
        return self.raced_ms or (typical_ms(self.before), typical_ms(self.after))


class Rules(Struct, frozen=True, kw_only=True):
    """Says how a contest is held."""

    measure: Measure = STEP
    min_pairs: int = 1
    max_pairs: int = MAX_PAIRS
    fresh: bool = False
    """Whether only new processes count."""
    so_far: "Contest | None" = None
    """An undecided contest of the same two sets, whose pairs count."""
    refuse: Callable[[Trial], Reason | None] = lambda trial: None
    """Returns why the first trial of the second set ends the contest: nothing was changed, or the
    results differ."""
    go_on: Callable[[], bool] = lambda: True
    """Returns whether there is time for another pair."""
    on_pair: Callable[[int, float], None] = lambda number, ratio: None


def contest(
    history: TrialHistory,
    pool: Pool,
    before: tuple[Asked, ...],
    after: tuple[Asked, ...],
    rules: Rules,
) -> Contest:
    """Find out how many times as good `after` is as `before`. The order of the two changes from
    pair to pair."""
    earlier = rules.so_far
    old: list[Trial] = list(earlier.before) if earlier is not None else []
    new: list[Trial] = list(earlier.after) if earlier is not None else []
    differences = [_difference(*pair, rules.measure) for pair in zip(old, new, strict=True)]
    while len(differences) < rules.max_pairs:
        number = len(differences)
        halves: dict[bool, Outcome] = {}
        for fixes in (before, after) if number % 2 == 0 else (after, before):
            recent = history.recent(fixes) if number == 0 and not rules.fresh else None
            outcome = recent or history.trial(fixes, fresh=rules.fresh)
            if outcome.cut and number:
                return _decided(pool, differences, old, new)
            trial = outcome.trial
            if trial is None or not is_timed(trial) or rules.measure.of(trial) is None:
                return _failed(outcome, fixes is after, old, new, rules.measure)
            halves[fixes is after] = outcome
        for trials, trial in zip((old, new), _of_one_call(history, before, halves), strict=True):
            trials.append(trial)
        if number == 0 and (refusal := rules.refuse(new[0])) is not None:
            return Contest(outcome="REFUSED", reason=refusal, before=tuple(old), after=tuple(new))
        differences.append(_difference(old[-1], new[-1], rules.measure))
        rules.on_pair(len(differences), math.exp(sum(differences) / len(differences)))
        if len(differences) >= rules.min_pairs and _is_enough(
            pool, differences, rules, _is_steady(old, new)
        ):
            break
    result = _decided(pool, differences, old, new)
    if earlier is None:  # the pool has learnt from the pairs of an earlier contest already
        pool.add_comparison(differences)
    return result


def _of_one_call(
    history: TrialHistory, before: tuple[Asked, ...], halves: dict[bool, Outcome]
) -> tuple[Trial, Trial]:
    """Return a pair of trials from the same call: a machine is another an hour later."""
    old, new = halves[False], halves[True]
    if old.remembered != new.remembered:
        like = history.of_same_call(before, new)
        if like is None and not new.remembered:
            like = history.trial(before, fresh=True)
        old = like if like is not None and like.trial is not None else old
    assert old.trial is not None
    assert new.trial is not None
    return old.trial, new.trial


def _is_enough(pool: Pool, differences: Sequence[float], rules: Rules, steady: bool) -> bool:
    if _is_hopeless(pool, differences):
        return True
    level = LOOKS.get(len(differences))
    if level is not None and _verdict(pool, differences, level, steady):
        return True
    upper = pool.interval(differences, FUTILITY_LEVEL)[2]
    return upper < MIN_WORTH_LOG_GAIN or not rules.go_on()


def _is_hopeless(pool: Pool, differences: Sequence[float]) -> bool:
    """Return whether the first pair is far worse, also for a machine that varies much."""
    limit = max(HOPELESS_LOG_LOSS, HOPELESS_SPREADS * pool.spread)
    return len(differences) == 1 and differences[0] < -limit


def _difference(old: Trial, new: Trial, measure: Measure) -> float:
    before, after = measure.of(old), measure.of(new)
    assert before is not None
    assert after is not None
    return math.log(before / after)


def _is_steady(old: Sequence[Trial], new: Sequence[Trial]) -> bool:
    return all(
        trial.device == "cuda" and (trial.input_share or 0.0) < MAX_STEADY_INPUT_SHARE
        for trial in (*old, *new)
    )


def _verdict(
    pool: Pool, differences: Sequence[float], level: float, steady: bool
) -> Verdict | None:
    mean, low, high = pool.interval(differences, level)
    one_pair = MIN_STEADY_ONE_PAIR_LOG_GAIN if steady else MIN_ONE_PAIR_LOG_GAIN
    if low > 0 and mean >= (MIN_LOG_GAIN if len(differences) > 1 else one_pair):
        return "FASTER"
    if high < 0 and mean <= -MIN_LOG_GAIN:
        return "SLOWER"
    return "SAME" if low >= -MIN_LOG_GAIN and high <= MIN_LOG_GAIN else None


def _decided(
    pool: Pool, differences: list[float], old: Sequence[Trial], new: Sequence[Trial]
) -> Contest:
    mean, low, high = pool.interval(differences, LEVEL)
    level = LOOKS.get(len(differences), LEVEL / 2)
    verdict = _verdict(pool, differences, level, _is_steady(old, new)) or "UNDECIDED"
    if _is_hopeless(pool, differences):
        verdict = "SLOWER"
    ratio = Ratio(
        value=math.exp(mean), ci_low=math.exp(low), ci_high=math.exp(min(high, 50.0)),
        pairs=len(differences),
    )  # fmt: skip
    outcome: ContestOutcome = "UNDECIDED" if verdict == "INVALID" else verdict
    return Contest(
        outcome=outcome, reason=because_of_ratio(SearchCode[outcome], ratio), ratio=ratio,
        before=tuple(old), after=tuple(new),
    )  # fmt: skip


def because_of_ratio(code: SearchCode, ratio: Ratio) -> Reason:
    """Return the reason `code` with the ratio, its interval and its pairs as facts."""
    return because(
        code, value=ratio.value, ci_low=ratio.ci_low, ci_high=ratio.ci_high, pairs=ratio.pairs
    )


def _failed(
    outcome: Outcome, with_fixes: bool, old: list[Trial], new: list[Trial], measure: Measure
) -> Contest:
    if outcome.failure is not None:
        reason = outcome.failure
    elif outcome.trial is not None and not is_timed(outcome.trial):
        reason = because(SearchCode.TOO_FEW_STEPS)
    else:
        reason = because(SearchCode.NO_MEASURE, measure=measure.name)
    if not with_fixes and not outcome.cut:
        reason = because(SearchCode.BASELINE_FAILED, cause=reason)
    return Contest(
        outcome="CUT" if outcome.cut else "FAILED", reason=reason, before=tuple(old),
        after=tuple(new),
    )  # fmt: skip


def is_doubtful(ratio: Ratio) -> bool:
    """Return whether a gain is not far from nothing: then it is measured again, later, and has to
    be there still."""
    return math.log(ratio.value) < DOUBTFUL_REACHES * _half_width(ratio)


def is_confirmed(first: Ratio, again: Ratio) -> bool:
    """Return whether two contests of the same sets show a gain together. Each counts by its
    pairs."""
    pairs = first.pairs + again.pairs
    gain = sum(one.pairs * math.log(one.value) for one in (first, again)) / pairs
    width = math.hypot(*(one.pairs * _half_width(one) for one in (first, again))) / pairs
    return gain >= CONFIRMED_REACHES * width


def _half_width(ratio: Ratio) -> float:
    return (math.log(ratio.ci_high) - math.log(ratio.ci_low)) / 2

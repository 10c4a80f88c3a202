"""Whether the place in a round, or who ran just before, changed an arm's time.

Shuffling spreads such an effect over the arms; it does not remove it, and where one arm leaves
the caches or the clocks worse than another the ratios say less than they seem to. Every arm in
every place and after every other arm is one contrast; the largest of all is held against the
largest that the same times give when the orders are dealt out anew, which pays for their number.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.records.comparison import (
    Control,
    DecidedBy,
    Drift,
    Estimate,
    OrderEffect,
    VerdictCode,
)
from ridgeline.records.facts import Reason, Verdict, because
from ridgeline.statistics.paired import paired_ratio
from ridgeline.statistics.samples import average_ranks, drift
from ridgeline.statistics.significance import holm_alphas

Floats = NDArray[np.float64]
Integers = NDArray[np.integer]
Contrast = tuple[int, NDArray[np.bool_], str]
"""An arm, the rounds in which it holds, and the words for it."""

ORDER_ALPHA = 0.05
_DEALS = 499
_CELLS = 1_000_000  # of ranks dealt at once: 8 MB
_FEWEST = 5  # rounds on either side of a contrast; fewer say nothing and fatten the largest


def order_effect(
    samples: Floats,
    positions: Integers,
    *,
    names: Sequence[str] = (),
    process: Integers | None = None,
    seed: int = 0,
) -> OrderEffect:
    """Of times and places (rounds, arms); the names are for the sentence. The first arm of a
    round ran after the last of the round before, unless the processes changed in between."""
    arms = samples.shape[1]
    named = names or [f"arm {at}" for at in range(arms)]
    relative = _relative(np.log(samples))
    contrasts = _contrasts(positions, _before(positions, process), named)
    kept = [contrast for contrast in contrasts if _enough(contrast[1])]
    if not kept or arms < 2:
        return OrderEffect(share=0.0, significant=False)
    ranks = np.stack([average_ranks(relative[:, arm]) for arm in range(arms)], axis=1)
    ranks -= ranks.mean(axis=0)
    scores = _scores(ranks[None], kept)[0]
    largest = int(np.argmax(scores))
    arm, mask, text = kept[largest]
    change = np.median(relative[mask, arm]) - np.median(relative[~mask, arm])
    return OrderEffect(
        share=float(np.expm1(min(change, 690.0))),
        significant=_chance(ranks, kept, float(scores[largest]), seed) <= ORDER_ALPHA,
        where=text,
    )


def _relative(logs: Floats) -> Floats:
    """Each arm's log time less the mean of the others' in its round: what slows the whole round
    drops out, and an effect on one arm keeps its size."""
    arms = logs.shape[1]
    others = (logs.sum(axis=1, keepdims=True) - logs) / max(arms - 1, 1)
    relative: Floats = logs - others
    return relative


def _before(positions: Integers, process: Integers | None) -> Integers:
    """Which arm ran just before each arm, -1 where none did."""
    order = np.argsort(positions, axis=1)
    rounds = order.shape[0]
    carried = np.concatenate([[-1], order[:-1, -1]])
    if process is not None:
        carried[1:][np.diff(process) != 0] = -1
    ran_before = np.concatenate([carried[:, None], order[:, :-1]], axis=1)
    before: Integers = ran_before[np.arange(rounds)[:, None], positions]
    return before


def _contrasts(positions: Integers, before: Integers, names: Sequence[str]) -> list[Contrast]:
    arms = positions.shape[1]
    found = []
    for arm in range(arms):
        for place in range(arms):
            words = "first" if place == 0 else "last" if place == arms - 1 else f"at {place + 1}"
            found.append((arm, positions[:, arm] == place, f"{names[arm]} when {words}"))
        for other in range(arms):
            text = f"{names[arm]} after {'itself' if other == arm else names[other]}"
            found.append((arm, before[:, arm] == other, text))
    return found


def _enough(mask: NDArray[np.bool_]) -> bool:
    inside = int(mask.sum())
    return min(inside, mask.size - inside) >= _FEWEST


def _scores(ranks: Floats, contrasts: Sequence[Contrast]) -> Floats:
    """Rank sums inside each contrast in their standard deviations, unsigned; `ranks` are
    (deals, rounds, arms), centred, the result is (deals, contrasts)."""
    rounds, arms = ranks.shape[1:]
    found = []
    for arm in range(arms):
        masks = np.array([mask for owner, mask, _ in contrasts if owner == arm], np.float64)
        inside = masks.sum(axis=-1)
        variance = ranks[0, :, arm].var() * inside * (rounds - inside) / (rounds - 1)
        if masks.size:
            found.append(ranks[:, :, arm] @ masks.T / np.sqrt(np.maximum(variance, 1e-12)))
    scores: Floats = np.abs(np.concatenate(found, axis=1))
    return scores


def _chance(ranks: Floats, contrasts: Sequence[Contrast], score: float, seed: int) -> float:
    """How often the largest of all contrasts comes out as large when rounds keep their times and
    get each other's orders."""
    rng = np.random.default_rng(seed)
    rounds = ranks.shape[0]
    at_once = max(1, _CELLS // ranks.size)
    reached = 1  # the measured orders are one deal of those possible
    for done in range(0, _DEALS, at_once):
        some = min(at_once, _DEALS - done)
        deals = rng.permuted(np.tile(np.arange(rounds), (some, 1)), axis=1)
        largest = _scores(ranks[deals], contrasts).max(axis=1)
        reached += int((largest >= score - 1e-9).sum())
    return reached / (_DEALS + 1)


FEWEST_ROUNDS = 6
"""Under 6 rounds no 95 % interval of the median exists, and no bootstrap invents one."""
_FAR = 5  # times the threshold: 10 % apart, where the threshold is 2 %
_HOPELESS = 100  # times the rounds; beyond, a number would be a guess


def judge(estimate: Estimate, control: Control, *, threshold: float) -> tuple[Verdict, Reason]:
    """Return the verdict and its reason. `threshold` is the share that matters: 0.02 for a ratio of
    1.02 or 1 / 1.02."""
    if threshold < 0 or not math.isfinite(threshold):
        raise ValueError(f"the share that matters must be finite and not negative, not {threshold}")
    if estimate.rounds < FEWEST_ROUNDS:
        return "UNDECIDED", because(
            VerdictCode.TOO_FEW_ROUNDS, rounds=estimate.rounds, needed=FEWEST_ROUNDS
        )
    if control.differs:
        difference = _share(abs(math.log(control.estimate.ratio)))
        return "UNDECIDED", because(VerdictCode.CONTROL_DIFFERS, difference=difference)
    size = abs(math.log(estimate.ratio))
    matters = math.log1p(threshold)
    apart_from_one = estimate.ci_low > 1.0 or estimate.ci_high < 1.0
    if apart_from_one and _clears(estimate, control, size, threshold):
        verdict: Verdict = "FASTER" if estimate.ratio > 1.0 else "SLOWER"
        return verdict, _beyond(estimate, control, threshold)
    if -matters <= math.log(estimate.ci_low) and math.log(estimate.ci_high) <= matters:
        return "SAME", because(
            VerdictCode.WITHIN_THRESHOLD,
            ci_low=estimate.ci_low,
            ci_high=estimate.ci_high,
            threshold=threshold,
        )
    return "UNDECIDED", _missing(estimate, control, size, matters, apart_from_one)


def _clears(estimate: Estimate, control: Control, size: float, threshold: float) -> bool:
    """Beyond what matters and beyond what identical code showed. Where that was far, and the
    control's own interval leaves out 1, chance is a poor excuse for it: then all of the candidate's
    interval must be. (Asked of every control that leaves out 1, it would cost 4 of the 93 % of
    5 % effects found.)"""
    if size < math.log1p(max(threshold, control.floor)):
        return False
    aa = control.estimate
    if aa.ci_low <= 1.0 <= aa.ci_high or control.floor < _FAR * threshold:
        return True
    nearest = min(abs(math.log(estimate.ci_low)), abs(math.log(estimate.ci_high)))
    return nearest >= math.log1p(control.floor)


def differs(strict: Estimate, *, threshold: float) -> bool:
    """Whether the control, its interval at a fifth of the level, says that identical code
    differs, and by something that matters."""
    apart = strict.ci_low > 1.0 or strict.ci_high < 1.0
    return (
        strict.rounds >= FEWEST_ROUNDS
        and apart
        and abs(math.log(strict.ratio)) >= math.log1p(threshold)
    )


def _beyond(estimate: Estimate, control: Control, threshold: float) -> Reason:
    ratio, low, high = estimate.ratio, estimate.ci_low, estimate.ci_high
    if control.floor > threshold:
        code, floor = VerdictCode.BEYOND_CONTROL, control.floor
        return because(code, ratio=ratio, ci_low=low, ci_high=high, floor=floor)
    code = VerdictCode.BEYOND_THRESHOLD
    return because(code, ratio=ratio, ci_low=low, ci_high=high, threshold=threshold)


def _missing(
    estimate: Estimate, control: Control, size: float, matters: float, apart_from_one: bool
) -> Reason:
    half = (math.log(estimate.ci_high) - math.log(estimate.ci_low)) / 2
    if not apart_from_one:
        return because(
            VerdictCode.REACHES_ONE,
            ci_low=estimate.ci_low,
            ci_high=estimate.ci_high,
            rounds_factor=_rounds_factor(half, matters - size if size < matters else size),
        )
    if size < matters:
        return because(
            VerdictCode.MAY_MATTER,
            difference=_share(size),
            threshold=_share(matters),
            possible=_share(size + half),
            rounds_factor=_rounds_factor(half, matters - size),
        )
    floor = math.log1p(control.floor)
    return because(
        VerdictCode.WITHIN_CONTROL,
        difference=_share(size),
        floor=control.floor,
        rounds_factor=_rounds_factor(floor, size),
    )


def _rounds_factor(have: float, need: float) -> int:
    """Return how many times as many rounds would shrink an interval from `have` to `need`: widths
    shrink with the square root of the rounds. Return 0 where no number worth running would do."""
    if need <= 0.0 or have / need > math.sqrt(_HOPELESS):
        return 0
    return max(math.ceil((have / need) ** 2), 2)


def _share(size: float) -> float:
    """Return a difference of logarithms as a share."""
    return math.expm1(min(size, 300.0))


CONTROL_SHARE = 0.2
"""Of the level, for "identical code differs": 1 % at 5 %. At 5 % every twentieth comparison would
be thrown away for nothing."""


class RoundTable(Struct, frozen=True):
    """The rounds so far: arms[0] is the baseline, arms[1] the control, the rest are candidates."""

    samples: NDArray[np.float64]
    """(rounds, arms), nanoseconds a call."""
    positions: NDArray[np.integer]
    """(rounds, arms), the place of each arm within its round, from 0."""
    process: NDArray[np.integer] | None = None
    """(rounds,), the set of processes the round ran in."""
    names: tuple[str, ...] = ()
    """Of the arms, for sentences."""

    def checked(self) -> "RoundTable":
        shape = self.samples.shape
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
            raise ValueError(f"rounds need a baseline and a control at least, not {shape}")
        if self.positions.shape != shape:
            raise ValueError(f"{shape} samples need as many places, not {self.positions.shape}")
        if (np.sort(self.positions, axis=1) != np.arange(shape[1])).any():
            raise ValueError("the places of a round are 0, 1, 2 … in some order")
        if self.names and len(self.names) != shape[1]:
            raise ValueError(f"{shape[1]} arms need as many names, not {len(self.names)}")
        return self


class Analysis(Struct, frozen=True):
    """What the rounds say at one look; estimates, verdicts and reasons are the candidates'."""

    control: Control
    estimates: tuple[Estimate, ...]
    verdicts: tuple[Verdict, ...]
    reasons: tuple[Reason, ...]
    drift: Drift
    order: OrderEffect
    decided_by: tuple[DecidedBy, ...] = ()
    """Which measure decided each verdict; "" for UNDECIDED."""
    processor_estimates: tuple[Estimate, ...] = ()
    """The ratios by processor time; empty if processor time may not be used (`processor_time`)."""


def analyse(table: RoundTable, *, alpha: float, threshold: float, seed: int = 0) -> Analysis:
    """`alpha` is the level of this look for all candidates together (Holm shares it out),
    `threshold` the share that matters."""
    samples = table.checked().samples
    base, process = samples[:, :2], table.process
    aa = paired_ratio(base[:, 0], base[:, 1], seed=seed, process=process)
    shown = aa.estimate(alpha)
    control = Control(
        estimate=shown,
        floor=max(shown.ratio, 1 / shown.ratio) - 1,
        differs=differs(aa.estimate(alpha * CONTROL_SHARE), threshold=threshold),
    )
    ratios = [
        paired_ratio(base, samples[:, arm], seed=seed, process=process)
        for arm in range(2, samples.shape[1])
    ]
    levels = holm_alphas([ratio.p_value for ratio in ratios], alpha)
    estimates = [ratio.estimate(level) for ratio, level in zip(ratios, levels, strict=True)]
    judged = [judge(estimate, control, threshold=threshold) for estimate in estimates]
    return Analysis(
        control=control,
        estimates=tuple(estimates),
        verdicts=tuple(verdict for verdict, _ in judged),
        reasons=tuple(reason for _, reason in judged),
        decided_by=tuple("" if verdict == "UNDECIDED" else "clock" for verdict, _ in judged),
        drift=drift(np.exp(np.log(base).mean(axis=1))),
        order=order_effect(samples, table.positions, names=table.names, process=process, seed=seed),
    )


OWN_THREAD_SHARE = 0.98
"""The smallest share of a process's processor time that the calling thread must have. Less means
that other threads worked, too."""
CROWDED_SHARE = 0.05
"""The smallest share of wall time in which the baseline and the control had no processor, for the
machine to count as crowded."""
LEVEL_SHARE = 0.2
"""The significance level for the verdict by processor time, as a share of the level of the look: it
is 1 % where the look has 5 %."""


class ProcessorTimes(Struct, frozen=True):
    """What the operating system counted in the same rounds, by round and arm."""

    wall: Floats
    """Nanoseconds of the block."""
    process: Floats
    """Processor time of all threads."""
    thread: Floats
    """Processor time of the calling thread."""
    sleeps: Floats
    """Voluntary context switches of the calling thread."""

    @property
    def taken_share(self) -> float:
        """The share of wall time in which the baseline and the control waited for a processor."""
        return 1 - float(self.process[:, :2].sum() / self.wall[:, :2].sum())

    def can_testify(self) -> bool:
        """Return whether processor time is what wall time would be on a quiet machine, and whether
        this machine is not quiet."""
        if not (self.process > 0).all():
            return False
        in_own_thread = self.thread.sum(axis=0) >= OWN_THREAD_SHARE * self.process.sum(axis=0)
        awake = np.median(self.sleeps, axis=0) == 0
        return bool(in_own_thread.all() and awake.all() and self.taken_share >= CROWDED_SHARE)


def decide_by_processor_time(
    found: Analysis,
    times: ProcessorTimes,
    table: RoundTable,
    *,
    alpha: float,
    threshold: float,
    seed: int = 0,
) -> Analysis:
    """Return the analysis by wall time, `found`, corrected by processor time. Where processor time
    can testify, it decides verdicts that wall time left open, and turns verdicts that it
    contradicts into UNDECIDED. `table` has the processor time of each call in place of its wall
    time; `alpha` is the significance level of the look."""
    if not times.can_testify():
        return found
    second = analyse(table, alpha=LEVEL_SHARE * alpha, threshold=threshold, seed=seed)
    verdicts, reasons, deciders = list(found.verdicts), list(found.reasons), list(found.decided_by)
    for at, (first, then) in enumerate(zip(found.verdicts, second.verdicts, strict=True)):
        if first == "UNDECIDED" and then != "UNDECIDED":
            if not _holds(found.estimates[at], second.estimates[at]):
                continue
            verdicts[at], deciders[at] = then, "processor_time"
            reasons[at] = because(
                VerdictCode.BY_PROCESSOR_TIME,
                cause=second.reasons[at],
                taken_share=times.taken_share,
            )
        elif not _supports(first, then, second.estimates[at], threshold):
            verdicts[at], deciders[at] = "UNDECIDED", ""
            reasons[at] = because(
                VerdictCode.MEASURES_DISAGREE,
                verdict=first,
                ratio=second.estimates[at].ratio,
                taken_share=times.taken_share,
            )
    return replace(
        found,
        verdicts=tuple(verdicts),
        reasons=tuple(reasons),
        decided_by=tuple(deciders),
        processor_estimates=second.estimates,
    )


def _holds(wall: Estimate, processor: Estimate) -> bool:
    return wall.ci_low <= processor.ratio <= wall.ci_high


def _supports(first: Verdict, then: Verdict, estimate: Estimate, threshold: float) -> bool:
    """Return whether processor time agrees with the verdict by wall time. A variant that is faster
    by more than the threshold must take less processor time by more than the threshold."""
    if first == "FASTER":
        return estimate.ratio >= 1 + threshold
    if first == "SLOWER":
        return estimate.ratio <= 1 / (1 + threshold)
    return first == "UNDECIDED" or then in ("SAME", "UNDECIDED")


def deciding_estimates(found: Analysis) -> Sequence[tuple[Verdict, Estimate]]:
    """Return each verdict with the estimate that it rests on."""
    pairs = []
    for at, verdict in enumerate(found.verdicts):
        second = found.decided_by[at] == "processor_time"
        pairs.append((verdict, (found.processor_estimates if second else found.estimates)[at]))
    return pairs

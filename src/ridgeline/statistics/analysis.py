"""The judgement of a comparison: estimates, verdicts, drift and order effects of its rounds.

`analyse` judges by wall time. `decide_by_processor_time` corrects that on a crowded machine, where
processor time says more. `order_effect` tests whether the place in a round, or the variant that ran
just before, changed a variant's time. Shuffling spreads such an effect over the variants but does
not remove it: where one variant leaves the caches or the clocks in a worse state than another, the
ratios are less reliable than they look. Every variant in every place and after every other variant
is one contrast. The largest contrast is compared with the largest that the same times give when the
orders are shuffled among the rounds, which corrects for their number.
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
"""A variant, the rounds in which it had this place or this predecessor, and the description."""

ORDER_ALPHA = 0.05
"""The significance level of the test for an order effect."""
_SHUFFLES = 499
_MAX_RANKS_AT_ONCE = 1_000_000  # 8 MB
# A contrast with fewer rounds on either side says nothing and would only raise the largest score.
_MIN_CONTRAST_ROUNDS = 5


def order_effect(
    samples: Floats,
    positions: Integers,
    *,
    names: Sequence[str] = (),
    process: Integers | None = None,
    seed: int = 0,
) -> OrderEffect:
    """Return the largest order effect in `samples` and `positions`, both (rounds, variants).
    `names` describe it. The first variant of a round ran after the last of the round before, unless
    the processes changed in between."""
    variants = samples.shape[1]
    named = names or [f"variant {index}" for index in range(variants)]
    relative = _relative(np.log(samples))
    contrasts = _contrasts(positions, _predecessors(positions, process), named)
    kept = [contrast for contrast in contrasts if _has_enough_rounds(contrast[1])]
    if not kept or variants < 2:
        return OrderEffect(share=0.0, significant=False)
    ranks = np.stack([average_ranks(relative[:, variant]) for variant in range(variants)], axis=1)
    ranks -= ranks.mean(axis=0)
    scores = _scores(ranks[None], kept)[0]
    largest = int(np.argmax(scores))
    variant, mask, text = kept[largest]
    change = np.median(relative[mask, variant]) - np.median(relative[~mask, variant])
    return OrderEffect(
        share=float(np.expm1(min(change, 690.0))),
        significant=_chance(ranks, kept, float(scores[largest]), seed) <= ORDER_ALPHA,
        where=text,
    )


def _relative(logs: Floats) -> Floats:
    """Return each variant's log time minus the mean of the others' in its round. What slows the
    whole round cancels, and an effect on one variant keeps its size."""
    variants = logs.shape[1]
    others = (logs.sum(axis=1, keepdims=True) - logs) / max(variants - 1, 1)
    relative: Floats = logs - others
    return relative


def _predecessors(positions: Integers, process: Integers | None) -> Integers:
    """Return which variant ran just before each variant, -1 for none."""
    order = np.argsort(positions, axis=1)
    rounds = order.shape[0]
    carried = np.concatenate([[-1], order[:-1, -1]])
    if process is not None:
        carried[1:][np.diff(process) != 0] = -1
    ran_before = np.concatenate([carried[:, None], order[:, :-1]], axis=1)
    before: Integers = ran_before[np.arange(rounds)[:, None], positions]
    return before


def _contrasts(positions: Integers, before: Integers, names: Sequence[str]) -> list[Contrast]:
    variants = positions.shape[1]
    contrasts: list[Contrast] = []
    last = variants - 1
    for variant in range(variants):
        for place in range(variants):
            words = "first" if place == 0 else "last" if place == last else f"at {place + 1}"
            text = f"{names[variant]} when {words}"
            contrasts.append((variant, positions[:, variant] == place, text))
        for other in range(variants):
            text = f"{names[variant]} after {'itself' if other == variant else names[other]}"
            contrasts.append((variant, before[:, variant] == other, text))
    return contrasts


def _has_enough_rounds(mask: NDArray[np.bool_]) -> bool:
    inside = int(mask.sum())
    return min(inside, mask.size - inside) >= _MIN_CONTRAST_ROUNDS


def _scores(ranks: Floats, contrasts: Sequence[Contrast]) -> Floats:
    """Return the rank sum of each contrast, in standard deviations and without sign. `ranks` are
    centred, (shuffles, rounds, variants); the result is (shuffles, contrasts)."""
    rounds, variants = ranks.shape[1:]
    scores = []
    for variant in range(variants):
        masks = np.array([mask for owner, mask, _ in contrasts if owner == variant], np.float64)
        inside = masks.sum(axis=-1)
        variance = ranks[0, :, variant].var() * inside * (rounds - inside) / (rounds - 1)
        if masks.size:
            scores.append(ranks[:, :, variant] @ masks.T / np.sqrt(np.maximum(variance, 1e-12)))
    unsigned: Floats = np.abs(np.concatenate(scores, axis=1))
    return unsigned


def _chance(ranks: Floats, contrasts: Sequence[Contrast], score: float, seed: int) -> float:
    """Return the p-value of the largest score: how often the largest of all contrasts is at least
    as large when the orders are shuffled among the rounds and the times stay."""
    rng = np.random.default_rng(seed)
    rounds = ranks.shape[0]
    at_once = max(1, _MAX_RANKS_AT_ONCE // ranks.size)
    reached = 1  # the measured orders are one of the possible shuffles
    for done in range(0, _SHUFFLES, at_once):
        count = min(at_once, _SHUFFLES - done)
        shuffles = rng.permuted(np.tile(np.arange(rounds), (count, 1)), axis=1)
        largest = _scores(ranks[shuffles], contrasts).max(axis=1)
        reached += int((largest >= score - 1e-9).sum())
    return reached / (_SHUFFLES + 1)


MIN_ROUNDS = 6
"""Fewer than 6 rounds have no 95 % interval of the median, and no bootstrap makes up for that."""
# A control this many times the threshold from 1 is far off: 10 %, if the threshold is 2 %.
_FAR_CONTROL_FACTOR = 5
# If more than this many times the rounds would be needed, the number would be a guess.
_MAX_ROUNDS_FACTOR = 100


def judge(estimate: Estimate, control: Control, *, threshold: float) -> tuple[Verdict, Reason]:
    """Return the verdict and its reason. `threshold` is the share that matters: 0.02 for a ratio of
    1.02 or 1 / 1.02."""
    if threshold < 0 or not math.isfinite(threshold):
        raise ValueError(f"the share that matters must be finite and not negative, not {threshold}")
    if estimate.rounds < MIN_ROUNDS:
        return "UNDECIDED", because(
            VerdictCode.TOO_FEW_ROUNDS, rounds=estimate.rounds, needed=MIN_ROUNDS
        )
    if control.differs:
        difference = _share(abs(math.log(control.estimate.ratio)))
        return "UNDECIDED", because(VerdictCode.CONTROL_DIFFERS, difference=difference)
    size = abs(math.log(estimate.ratio))
    matters = math.log1p(threshold)
    apart_from_one = estimate.ci_low > 1.0 or estimate.ci_high < 1.0
    if apart_from_one and _exceeds_noise(estimate, control, size, threshold):
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


def _exceeds_noise(estimate: Estimate, control: Control, size: float, threshold: float) -> bool:
    """Return whether the difference is larger than the threshold and larger than the difference
    that identical code (the control) showed.

    If the control is far from 1 and its own interval excludes 1, chance hardly explains it. Then
    the whole interval of the candidate must lie beyond the control. (If this were required for
    every control whose interval excludes 1, 89 % instead of 93 % of 5 % effects would be found.)
    """
    if size < math.log1p(max(threshold, control.floor)):
        return False
    aa = control.estimate
    if aa.ci_low <= 1.0 <= aa.ci_high or control.floor < _FAR_CONTROL_FACTOR * threshold:
        return True
    nearest = min(abs(math.log(estimate.ci_low)), abs(math.log(estimate.ci_high)))
    return nearest >= math.log1p(control.floor)


def differs(strict: Estimate, *, threshold: float) -> bool:
    """Return whether identical code differs by more than the threshold. `strict` is the estimate of
    the control, with its interval at a fifth of the level (`CONTROL_LEVEL_SHARE`)."""
    apart = strict.ci_low > 1.0 or strict.ci_high < 1.0
    return (
        strict.rounds >= MIN_ROUNDS
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
    shrink with the square root of the rounds. Return 0 if that is more than worth running."""
    if need <= 0.0 or have / need > math.sqrt(_MAX_ROUNDS_FACTOR):
        return 0
    return max(math.ceil((have / need) ** 2), 2)


def _share(size: float) -> float:
    """Return a difference of logarithms as a share."""
    return math.expm1(min(size, 300.0))


CONTROL_LEVEL_SHARE = 0.2
"""The level at which the control is judged, as a share of the level of the look: 1 % where that is
5 %. At 5 % itself, one comparison in twenty would be thrown away for nothing."""


class RoundTable(Struct, frozen=True):
    """The rounds so far. Variant 0 is the baseline, variant 1 the control, the others are
    candidates."""

    samples: NDArray[np.float64]
    """Nanoseconds per call; (rounds, variants)."""
    positions: NDArray[np.integer]
    """The place of each variant within its round, from 0; (rounds, variants)."""
    process: NDArray[np.integer] | None = None
    """The set of processes that each round ran in; (rounds,)."""
    names: tuple[str, ...] = ()
    """The names of the variants, for descriptions."""

    def checked(self) -> "RoundTable":
        """Return this table; raise ValueError if its shapes or places are wrong."""
        shape = self.samples.shape
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
            raise ValueError(f"rounds need a baseline and a control at least, not {shape}")
        if self.positions.shape != shape:
            raise ValueError(f"{shape} samples need as many places, not {self.positions.shape}")
        if (np.sort(self.positions, axis=1) != np.arange(shape[1])).any():
            raise ValueError("the places of a round are 0, 1, 2 … in some order")
        if self.names and len(self.names) != shape[1]:
            raise ValueError(f"{shape[1]} variants need as many names, not {len(self.names)}")
        return self


class Analysis(Struct, frozen=True):
    """The result of one look at the rounds. Estimates, verdicts and reasons are the candidates'."""

    control: Control
    estimates: tuple[Estimate, ...]
    verdicts: tuple[Verdict, ...]
    reasons: tuple[Reason, ...]
    drift: Drift
    order: OrderEffect
    decided_by: tuple[DecidedBy, ...] = ()
    """The measure that decided each verdict; "" for UNDECIDED."""
    processor_estimates: tuple[Estimate, ...] = ()
    """The ratios by processor time; empty if processor time may not be used (`processor_time`)."""


def analyse(table: RoundTable, *, alpha: float, threshold: float, seed: int = 0) -> Analysis:
    """Judge the rounds by wall time. `alpha` is the significance level of this look for all
    candidates together (Holm's method divides it among them); `threshold` is the smallest
    difference that matters, as a share."""
    samples = table.checked().samples
    base, process = samples[:, :2], table.process
    control_ratio = paired_ratio(base[:, 0], base[:, 1], seed=seed, process=process)
    aa = control_ratio.estimate(alpha)
    control = Control(
        estimate=aa,
        floor=max(aa.ratio, 1 / aa.ratio) - 1,
        differs=differs(control_ratio.estimate(alpha * CONTROL_LEVEL_SHARE), threshold=threshold),
    )
    ratios = [
        paired_ratio(base, samples[:, variant], seed=seed, process=process)
        for variant in range(2, samples.shape[1])
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
    """Times and context switches that the operating system counted in the same rounds; each array
    is (rounds, variants)."""

    wall: Floats
    """Wall time of the block, in nanoseconds."""
    process: Floats
    """Processor time of all threads, in nanoseconds."""
    thread: Floats
    """Processor time of the calling thread, in nanoseconds."""
    sleeps: Floats
    """Voluntary context switches of the calling thread."""

    @property
    def taken_share(self) -> float:
        """The share of wall time in which the baseline and the control waited for a processor."""
        return 1 - float(self.process[:, :2].sum() / self.wall[:, :2].sum())

    def is_usable(self) -> bool:
        """Return whether processor time is what wall time would be on a quiet machine, and whether
        this machine is not quiet."""
        if not (self.process > 0).all():
            return False
        in_own_thread = self.thread.sum(axis=0) >= OWN_THREAD_SHARE * self.process.sum(axis=0)
        awake = np.median(self.sleeps, axis=0) == 0
        return bool(in_own_thread.all() and awake.all() and self.taken_share >= CROWDED_SHARE)


def decide_by_processor_time(
    analysis: Analysis,
    times: ProcessorTimes,
    table: RoundTable,
    *,
    alpha: float,
    threshold: float,
    seed: int = 0,
) -> Analysis:
    """Return the `analysis` by wall time, corrected by processor time. Where processor time is
    usable, it decides verdicts that wall time left open, and turns verdicts that it contradicts
    into UNDECIDED. `table` has the processor time of each call in place of its wall time; `alpha`
    is the significance level of the look."""
    if not times.is_usable():
        return analysis
    second = analyse(table, alpha=LEVEL_SHARE * alpha, threshold=threshold, seed=seed)
    verdicts, reasons = list(analysis.verdicts), list(analysis.reasons)
    deciders = list(analysis.decided_by)
    for at, (first, then) in enumerate(zip(analysis.verdicts, second.verdicts, strict=True)):
        if first == "UNDECIDED" and then != "UNDECIDED":
            if not _agree(analysis.estimates[at], second.estimates[at]):
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
        analysis,
        verdicts=tuple(verdicts),
        reasons=tuple(reasons),
        decided_by=tuple(deciders),
        processor_estimates=second.estimates,
    )


def _agree(wall: Estimate, processor: Estimate) -> bool:
    """Return whether the ratio by processor time lies in the interval by wall time."""
    return wall.ci_low <= processor.ratio <= wall.ci_high


def _supports(first: Verdict, then: Verdict, estimate: Estimate, threshold: float) -> bool:
    """Return whether processor time agrees with the verdict by wall time. A variant that is faster
    by more than the threshold must take less processor time by more than the threshold."""
    if first == "FASTER":
        return estimate.ratio >= 1 + threshold
    if first == "SLOWER":
        return estimate.ratio <= 1 / (1 + threshold)
    return first == "UNDECIDED" or then in ("SAME", "UNDECIDED")


def deciding_estimates(analysis: Analysis) -> Sequence[tuple[Verdict, Estimate]]:
    """Return each verdict with the estimate that it rests on."""
    pairs = []
    for at, verdict in enumerate(analysis.verdicts):
        by_processor = analysis.decided_by[at] == "processor_time"
        estimates = analysis.processor_estimates if by_processor else analysis.estimates
        pairs.append((verdict, estimates[at]))
    return pairs

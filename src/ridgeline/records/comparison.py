"""The result of a comparison: the variants, the A/A control, and a verdict on each candidate.

A ratio is the baseline's time over the candidate's: above 1 the candidate is faster.
"""

import math
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Reason, Verdict
from ridgeline.records.latency import Summary

Goal = Literal["speed", "memory", "throughput"]
Strength = Literal["strong", "weak", "none"]
DecidedBy = Literal["", "clock", "processor_time"]
"""Which measure a verdict rests on. "clock" is the variant's own clock: wall time, or the device's
events on a GPU. "processor_time" may decide on a crowded machine. "" means there is no verdict."""


class VerdictCode(StrEnum):
    """Says why a candidate has its verdict. Sizes of differences are shares: 0.05 is 5 %."""

    TOO_FEW_ROUNDS = "verdict.too-few-rounds"  # rounds, needed
    CONTROL_DIFFERS = "verdict.control-differs"  # difference: of identical code
    BEYOND_THRESHOLD = "verdict.beyond-threshold"  # ratio, ci_low, ci_high, threshold
    BEYOND_CONTROL = "verdict.beyond-control"  # ratio, ci_low, ci_high, floor: of identical code
    WITHIN_THRESHOLD = "verdict.within-threshold"  # ci_low, ci_high, threshold
    REACHES_ONE = "verdict.reaches-one"  # ci_low, ci_high, rounds_factor
    # difference, threshold, possible: the largest that the interval allows, rounds_factor
    MAY_MATTER = "verdict.may-matter"
    WITHIN_CONTROL = "verdict.within-control"  # difference, floor, rounds_factor
    BY_PROCESSOR_TIME = "verdict.by-processor-time"  # taken_share; cause: why, by that measure
    MEASURES_DISAGREE = "verdict.measures-disagree"  # verdict: by wall time, ratio, taken_share
    RESULTS_DIFFER = "verdict.results-differ"  # detail
    GUARD_FAILED = "verdict.guard-failed"  # guard, detail


class Estimate(Struct, frozen=True, kw_only=True):
    """A ratio of two variants over the rounds, with its interval."""

    ratio: float
    ci_low: float
    ci_high: float
    level: float
    """Confidence level of the interval. It is above 0.95, since all looks and candidates together
    have 0.95."""
    p_value: float
    """Two-sided p-value of "no difference", before any correction."""
    rounds: int
    method: str
    """How the interval was made: "bootstrap over 60 rounds", "moving blocks of 4 rounds"."""
    autocorrelation: float
    """Lag-1 autocorrelation of the log-ratios of the rounds."""
    within_low: float
    within_high: float
    """The interval by rounds alone."""
    between_low: float | None = None
    between_high: float | None = None
    """The interval by processes alone, where there were three sets of them or more; the wider of
    the two is `ci_low`, `ci_high`."""
    processes: int = 1


class Control(Struct, frozen=True, kw_only=True):
    """The baseline against itself, in the same rounds."""

    estimate: Estimate
    floor: float
    """How far apart identical code looked here, as a share: the estimate's distance from 1. No
    candidate closer to 1 than that is called faster or slower."""
    differs: bool
    """Whether identical code was told apart: then nothing else that was measured can be
    believed."""


class Outliers(Struct, frozen=True, kw_only=True):
    """Samples beyond Tukey's fences (1.5 and 3 IQR). They are counted and kept."""

    mild_low: int = 0
    mild_high: int = 0
    severe_low: int = 0
    severe_high: int = 0

    @property
    def total(self) -> int:
        return self.mild_low + self.mild_high + self.severe_low + self.severe_high


class Drift(Struct, frozen=True, kw_only=True):
    """Says how much the time of the baseline changed from the first round to the last: that is the
    machine, not the code."""

    share: float
    """Change over the whole run, as a share of the median; negative where it got faster."""
    significant: bool


class OrderEffect(Struct, frozen=True, kw_only=True):
    """Says whether the place in a round, or who ran just before, changed a variant's time."""

    share: float
    """The largest such change, as a share."""
    significant: bool
    where: str = ""
    """ "fast after slow", "slow when first": which one it was."""


class Variant(Struct, frozen=True, kw_only=True):
    """One variant, timed."""

    name: str
    samples_ns: tuple[float, ...]
    """One sample a round, in order; each is the mean of a block of calls."""
    summary: Summary
    outliers: Outliers
    block_calls: int
    cpu_median_ns: float
    """Median processor time of a call."""
    clock: str
    first_call_ns: float | None = None
    """Time of the very first call, with compilation, autotuning and allocation."""
    warmup_ns: float | None = None
    """Time that all calls before steady state took beyond as many steady ones."""
    warmup_calls: int = 0
    steady: bool = True
    recompiles: int = 0
    """Compilations while the rounds ran."""
    peak_bytes: int | None = None
    peak_method: str = ""
    items: float | None = None
    """Samples or tokens that a call handles, if the file declares them."""
    discarded: int = 0
    """Samples taken while the device was throttled, left out and counted."""


class Results(Struct, frozen=True, kw_only=True):
    """Says whether a candidate computes what the baseline does, and how well that was checked."""

    status: Literal["bit-identical", "equal", "within tolerance", "different", "not compared"]
    method: str
    """"float64 reference", "tolerances of float32", "declared tolerance", "its own check",
    "losses of 20 steps", "none"."""
    strength: Strength
    detail: str
    """One sentence with the numbers: the worst error, what was allowed, where."""
    reasons: tuple[str, ...] = ()
    """Why the check is weak or absent."""
    compared: int = 0
    """Numbers compared."""
    worst_error: float | None = None
    """Relative, the worst tensor's."""
    allowed_error: float | None = None
    baseline_error: float | None = None
    """The baseline's own error against the float64 reference."""

    @property
    def ok(self) -> bool:
        return self.status in ("bit-identical", "equal", "within tolerance")


class Guard(Struct, frozen=True, kw_only=True):
    """One way a timing can lie, looked for."""

    name: str
    """"cached replay", "mutated inputs", "lazy outputs", …"""
    outcome: Literal["passed", "warned", "failed", "not looked for"]
    detail: str = ""


class Candidate(Struct, frozen=True, kw_only=True):
    """One variant against the baseline."""

    variant: Variant
    verdict: Verdict
    reason: Reason
    """What decided the verdict, or what is missing for one. Its fact `rounds_factor` says how many
    times as many rounds would decide; 0: no number worth running would."""
    estimate: Estimate
    results: Results
    guards: tuple[Guard, ...] = ()
    cpu_ratio: float | None = None
    """The same ratio by processor time."""
    decided_by: DecidedBy = ""
    processor_estimate: Estimate | None = None
    """The ratio by processor time with its interval; None if processor time may not be used."""
    memory_ratio: float | None = None
    """Peak of the baseline over the candidate's: above 1 it needs less."""
    throughput_ratio: float | None = None
    pays_after: int | None = None
    """Calls after which a costlier warm-up has been won back; 0 at once, None never (or unknown:
    `pays` says which)."""
    pays: str = ""
    """"at once", "after 1,900 calls", "never", or "" where no warm-up was seen."""
    goal_met: bool | None = None
    """Whether the goal asked for was reached; None where that is undecided."""

    @property
    def deciding(self) -> Estimate:
        """The estimate that the verdict rests on."""
        if self.decided_by == "processor_time" and self.processor_estimate is not None:
            return self.processor_estimate
        return self.estimate

    @property
    def disqualifying_guard(self) -> Guard | None:
        """The guard that made the candidate INVALID; None if its results did, or if it is valid."""
        if self.verdict != "INVALID" or self.results.status == "different":
            return None
        return next((guard for guard in self.guards if guard.outcome == "failed"), None)


class Surroundings(Struct, frozen=True, kw_only=True):
    """The host, and what else ran on it during the rounds."""

    device: str
    threads: int
    cores: int
    affinity: tuple[int, ...] = ()
    load_1min: float | None = None
    steal_share: float | None = None
    others_cores: float | None = None
    """Processor time that other processes used during the rounds, in cores."""
    disturbances: tuple[Reason, ...] = ()
    """With a code of `Disturbance`."""
    versions: dict[str, str] = {}


class Skipped(Struct, frozen=True, kw_only=True, tag=True):
    """A candidate or a pair that was not measured, with the reason."""

    name: str
    status: Literal["SKIP", "BROKEN"]
    reason: str
    hint: str = ""


class Comparison(Struct, frozen=True, kw_only=True):
    """A whole comparison."""

    baseline: Variant
    control: Control
    control_variant: Variant | None = None
    candidates: tuple[Candidate, ...]
    unit: Literal["call", "run", "step"]
    mode: Literal["one process", "isolated processes", "scripts"]
    cache: Literal["warm", "cold"]
    goal: Goal
    threshold: float
    """Differences below this share do not matter."""
    alpha: float
    """Significance level of the whole comparison: 0.05."""
    looks: tuple[int, ...]
    """Numbers of rounds after which the data is looked at, set in advance."""
    stopped: Literal["decided", "budget", "all rounds", "interrupted"]
    rounds: int
    budget_s: float
    spent_s: float
    rounds_s: float = 0.0
    """Time of the rounds alone."""
    seed: int
    drift: Drift
    order: OrderEffect
    surroundings: Surroundings
    broken: tuple[Skipped, ...] = ()
    """Candidates that could not be run, or cannot run here."""
    notes: tuple[str, ...] = ()

    @property
    def noise_band(self) -> float:
        """The share that does not matter: the threshold, or what identical code showed if that is
        more."""
        floor = self.control.floor
        return max(self.threshold, floor) if math.isfinite(floor) else self.threshold

    @property
    def best(self) -> Candidate | None:
        """The candidate that gains most by the goal; None if none reached it."""
        won = [
            candidate
            for candidate in self.candidates
            if candidate.verdict != "INVALID"
            and (candidate.verdict == "FASTER" if self.goal == "speed" else candidate.goal_met)
        ]
        return max(won, key=self._gain, default=None)

    def _gain(self, candidate: Candidate) -> float:
        by_memory = self.goal == "memory"
        return (candidate.memory_ratio if by_memory else candidate.deciding.ratio) or 0.0

    def log_ratios(self, candidate: Candidate) -> list[float]:
        """Return the logarithm of each round's ratio; [] where samples were left out, since then
        rounds cannot be paired. For throughput the ratio is of time an item."""
        before, after = self.baseline.samples_ns, candidate.variant.samples_ns
        if len(before) != len(after):
            return []
        more_items = 1.0
        if (
            candidate.throughput_ratio is not None
            and self.baseline.items
            and candidate.variant.items
        ):
            more_items = candidate.variant.items / self.baseline.items
        return [
            math.log(base / sample * more_items)
            for base, sample in zip(before, after, strict=True)
            if 0 < base < math.inf and 0 < sample < math.inf
        ]

    def memory_verdict(self, candidate: Candidate) -> Literal["LESS", "MORE", "SAME"] | None:
        """Return whether a candidate needs less memory, by the threshold; None: not measured."""
        ratio = candidate.memory_ratio
        if ratio is None or not math.isfinite(ratio) or ratio <= 0:
            return None
        if candidate.goal_met or ratio > 1 + self.threshold:
            return "LESS"
        return "MORE" if ratio < 1 / (1 + self.threshold) else "SAME"


class Pair(Struct, frozen=True, kw_only=True, tag=True):
    """One pair of a folder."""

    name: str
    title: str
    """The first line of the baseline file's docstring."""
    comparison: Comparison


class PairFolder(Struct, frozen=True, kw_only=True):
    folder: str
    pairs: tuple[Pair | Skipped, ...]
    """The pairs in order of their names. Pairs that were not reached before Ctrl-C are missing."""
    found: int = 0
    """Pairs in the folder."""
    interrupted: bool = False

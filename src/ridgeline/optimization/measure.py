"""Reads from a trial what a goal makes smaller, and how much it varies between processes."""

import math
from collections.abc import Callable, Sequence
from statistics import median, stdev
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Ratio
from ridgeline.records.optimized import Goal, Measured
from ridgeline.records.trial import Trial
from ridgeline.statistics.pooled import Pool
from ridgeline.statistics.samples import pace

Varies = Literal["time", "work", "memory", "energy"]
MIN_TIMED_STEPS = 5
PARTS = 4
"""Parts of a trial's steps that are compared to see how much it varies within the process."""
MIN_HIDING_INPUT_SHARE = 0.1
"""A step that waits for input for this share of itself hides how much the rest of it varies."""
MIN_SPEEDUP = 1.25
ASSUMED_SPREAD = 0.05
"""Least spread of a process that no longer waits for input, until more is known."""


class Measure(Struct, frozen=True):
    name: Measured
    of: Callable[[Trial], float | None]
    """Returns the measured value, of which less is better; None if the trial does not tell."""
    varies: Varies = "time"
    """Measures of one kind vary alike from process to process; those of different kinds do not."""
    min_s: float = 0.0
    """Least time of the timed steps that this can be measured over."""
    steps: Callable[[Trial], tuple[int, ...]] = lambda trial: trial.step_ns
    """Returns the times of the steps, from which the noise within a process is learnt."""


def step_ns(trial: Trial) -> float | None:
    """Return the time of a steady step in the long run: with workers, most steps wait for nothing,
    and some wait for all workers."""
    return pace(trial.step_ns) if trial.step_ns else None


def undisturbed_ns(trial: Trial) -> float | None:
    """Return the time of a steady step without its waits for a processor, as far as they are
    known."""
    return pace(_undisturbed_steps(trial)) if trial.step_ns else None


def _undisturbed_steps(trial: Trial) -> tuple[int, ...]:
    if not trial.queued_ns:
        return trial.step_ns
    return tuple(ns - waited for ns, waited in zip(trial.step_ns, trial.queued_ns, strict=True))


def samples(trial: Trial) -> float | None:
    """Return the mean number of samples in a step."""
    known = [number for number in trial.samples if number]
    return sum(known) / len(known) if known else None


def _sample_ns(trial: Trial) -> float | None:
    step, number = step_ns(trial), samples(trial)
    return step / number if step and number else None


def _sample_j(trial: Trial) -> float | None:
    return None if trial.energy_j is None else trial.energy_j / (samples(trial) or 1.0)


def _peak(trial: Trial) -> float | None:
    return float(trial.peak_bytes) or None


STEP = Measure("step time", step_ns)
UNDISTURBED = Measure("step time", undisturbed_ns, "work", steps=_undisturbed_steps)
"""The step time without waits for a processor, where they are known. Other programs on the machine
make the time with them vary by tens of per cent from process to process."""
SAMPLE = Measure("time a sample", _sample_ns)
MEASURES: dict[Goal, Measure] = {
    "speed": STEP,
    "throughput": SAMPLE,
    "memory": Measure("peak memory", _peak, "memory"),
    "energy": Measure("energy a sample", _sample_j, "energy", min_s=1.5),
}


def is_timed(trial: Trial) -> bool:
    return len(trial.step_ns) >= MIN_TIMED_STEPS


def typical_ms(trials: Sequence[Trial]) -> float:
    """Return the typical step of these trials, without waits for a processor as far as they are
    known."""
    known = [ns for ns in map(undisturbed_ns, trials) if ns is not None]
    return median(known) / 1e6 if known else 0.0


def samples_s(trials: Sequence[Trial], step_ms: float) -> float | None:
    """Return the samples a second of these trials, whose step takes so long."""
    known = [number for number in map(samples, trials) if number]
    return 1e3 * median(known) / step_ms if known and step_ms else None


class ProcessNoise:
    """Learns how far processes of one program lie apart, for each kind of measure. A
    peak of memory hardly varies: by its spread 32 of 100 larger batches that gain nothing were
    kept, on a machine whose times vary by 10 %; by the spread of times 6 are."""

    def __init__(self, baseline: Sequence[Trial]) -> None:
        """`baseline` has the trials of the unchanged program; it grows during the search."""
        self._baseline = baseline
        self._first: dict[Varies, Pool] = {}
        self._now: dict[Varies, Pool] = {}
        self._counted: dict[Varies, list[float]] = {}
        """Logarithms of the baseline's own trials that are in its pool."""
        self._seen: dict[Varies, int] = {}
        self._measures: dict[Varies, Measure] = {}

    def now(self, measure: Measure) -> Pool:
        """Return the spread with what is kept."""
        return self._now.get(measure.varies) or self.unchanged(measure)

    def unchanged(self, measure: Measure) -> Pool:
        """Return the spread of the baseline, from its own trials. How much steps vary within a
        process says nothing about memory."""
        if measure.varies not in self._first:
            pool = Pool()
            varying = [] if measure.varies == "memory" else self._baseline
            spreads = [_spread_within(measure.steps(trial)) for trial in varying]
            pool.add_assumption(median(spreads or [0.0]))
            self._counted[measure.varies] = self._known(measure)
            self._seen[measure.varies] = len(self._baseline)
            self._measures[measure.varies] = measure
            pool.add_runs(self._counted[measure.varies])
            self._first[measure.varies] = pool
        return self._first[measure.varies]

    def baseline_grew(self, measure: Measure) -> None:
        """Learn from further trials of the baseline. If time is short, it runs twice at first, and
        once more when a fix that rounds is judged: of 114, 113 and 68 ms the third showed that the
        machine was disturbed, and 5.28 × [4.97, 5.61] rested on the first two."""
        self.unchanged(measure)
        for varies, known in self._measures.items():
            pool, counted = self._first[varies], self._counted[varies]
            for value in map(known.of, self._baseline[self._seen[varies] :]):
                if value:
                    pool.add_run(counted, math.log(value))
                    counted.append(math.log(value))
            self._seen[varies] = len(self._baseline)

    def fix_kept(
        self, before: tuple[Trial, ...], after: tuple[Trial, ...], measure: Measure
    ) -> None:
        """Learn the spread anew if a kept fix ended a wait for input. A loader that takes 40 ms a
        step holds the steps steady; once it takes 10, they vary as the machine does, from 11 to
        15 ms. By the earlier spread, a fix that changes nothing was then called faster in 22 of 100
        contests, by the new one in 4."""
        waited, waits = (
            median([trial.input_share or 0.0 for trial in trials] or [0.0])
            for trials in (before, after)
        )
        no_longer_waits = waited >= MIN_HIDING_INPUT_SHARE and waits < waited / 2
        shorter = typical_ms(before) >= MIN_SPEEDUP * typical_ms(after)
        if measure.varies == "memory" or not (no_longer_waits and shorter):
            return
        pool, earlier = Pool(), self.now(measure).spread / math.sqrt(2)
        within = median(_spread_within(measure.steps(trial)) for trial in after)
        pool.add_assumption(max(within, earlier, ASSUMED_SPREAD))
        pool.add_runs([math.log(value) for value in map(measure.of, after) if value])
        self._now[measure.varies] = pool

    def control(self, measure: Measure) -> Ratio | None:
        """Return the ratio of the baseline to itself, from pairs of its own trials."""
        known = self._known(measure)
        pairs = [a - b for a, b in zip(known[::2], known[1::2], strict=False)]
        if not pairs:
            return None
        mean, low, high = self.unchanged(measure).interval(pairs, 0.05)
        return Ratio(
            value=math.exp(mean), ci_low=math.exp(low), ci_high=math.exp(min(high, 50.0)),
            pairs=len(pairs),
        )  # fmt: skip

    def of_process(self, measure: Measure) -> float:
        """Return the spread of a process, as a standard deviation; 0 if there was only one."""
        return self.unchanged(measure).spread / math.sqrt(2) if len(self._baseline) > 1 else 0.0

    def _known(self, measure: Measure) -> list[float]:
        """Return the logarithms of the baseline's trials, if possible without the first: it reads
        the program's files from disk and finds a cold device, 22.8 ms a step beside 18.3 twice on
        an H200."""
        known = [math.log(value) for value in map(measure.of, self._baseline) if value]
        return known[1:] if len(known) > 2 else known


def _spread_within(steps: Sequence[int]) -> float:
    """Return how far the parts of one trial's steps lie apart, as a standard deviation of
    logarithms."""
    size = len(steps) // PARTS
    if not size:
        return 0.0
    parts = [steps[at * size : (at + 1) * size] for at in range(PARTS)]
    return stdev(math.log(median(part)) for part in parts)

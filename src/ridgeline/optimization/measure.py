"""What is made smaller, by the goal: a number of a trial, less is better."""

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

Varies = Literal["time", "memory", "energy"]
FEWEST_STEPS = 5


class Measure(Struct, frozen=True):
    name: Measured
    of: Callable[[Trial], float | None]
    """None: this trial does not tell."""
    varies: Varies = "time"
    """Measures of one kind vary alike from process to process, and no others do."""
    least_s: float = 0.0
    """That timed steps have to take, or it cannot be told."""


def step_ns(trial: Trial) -> float | None:
    """Of the steady steps, in the long run: with workers most wait for nothing, some for all."""
    return pace(trial.step_ns) if trial.step_ns else None


def samples(trial: Trial) -> float | None:
    """Of a step."""
    known = [one for one in trial.samples if one]
    return sum(known) / len(known) if known else None


def _sample_ns(trial: Trial) -> float | None:
    step, each = step_ns(trial), samples(trial)
    return step / each if step and each else None


def _sample_j(trial: Trial) -> float | None:
    if trial.energy_j is None:
        return None
    return trial.energy_j / (samples(trial) or 1.0)


def _peak(trial: Trial) -> float | None:
    return float(trial.peak_bytes) or None


STEP = Measure("step time", step_ns)
SAMPLE = Measure("time a sample", _sample_ns)
MEASURES: dict[Goal, Measure] = {
    "speed": STEP,
    "throughput": SAMPLE,
    "memory": Measure("peak memory", _peak, "memory"),
    "energy": Measure("energy a sample", _sample_j, "energy", least_s=1.5),
}


def timed(trial: Trial) -> bool:
    return len(trial.step_ns) >= FEWEST_STEPS


def typical_ms(trials: tuple[Trial, ...]) -> float:
    known = [one for one in map(step_ns, trials) if one is not None]
    return median(known) / 1e6 if known else 0.0


def samples_s(trials: tuple[Trial, ...]) -> float | None:
    known = [one for one in map(_sample_ns, trials) if one is not None]
    return 1e9 / median(known) if known else None


PARTS = 4
HIDDEN = 0.1
"""Of the step, waited for input: so much hides how the rest of it wavers."""
SHORTER = 1.25
WAVERS = 0.05
"""Of a process that waits no more, until more is known: at least."""


class Spreads:
    """One for each kind of measure. A peak of memory hardly varies: by its spread 32 of 100 larger
    batches that gain nothing were kept, on a machine whose times vary by 10 %; by that of times 6
    are."""

    def __init__(self, baseline: Sequence[Trial]) -> None:
        """`baseline` grows."""
        self._baseline = baseline
        self._first: dict[Varies, Pool] = {}
        self._now: dict[Varies, Pool] = {}
        self._counted: dict[Varies, list[float]] = {}
        """Logarithms of the unchanged program's own trials that are in its pool."""
        self._seen: dict[Varies, int] = {}

    def now(self, measure: Measure) -> Pool:
        """With what is kept."""
        return self._now.get(measure.varies) or self.unchanged(measure)

    def unchanged(self, measure: Measure) -> Pool:
        """What the program's own trials tell of it. Steps that waver say nothing of memory."""
        if measure.varies not in self._first:
            pool = Pool()
            wavers = [] if measure.varies == "memory" else self._baseline
            pool.assume(median([_inside(trial) for trial in wavers] or [0.0]))
            self._counted[measure.varies] = self._known(measure)
            self._seen[measure.varies] = len(self._baseline)
            pool.runs(self._counted[measure.varies])
            self._first[measure.varies] = pool
        return self._first[measure.varies]

    def grown(self, measure: Measure) -> None:
        """Where time is short, the program as it is runs twice at first, and once more when a
        change that rounds is judged: of 114, 113 and 68 ms the third told that the machine was
        disturbed, and 5.28 × [4.97, 5.61] stood on the first two."""
        pool, counted = self.unchanged(measure), self._counted[measure.varies]
        for value in map(measure.of, self._baseline[self._seen[measure.varies] :]):
            if value:
                pool.one_more(counted, math.log(value))
                counted.append(math.log(value))
        self._seen[measure.varies] = len(self._baseline)

    def kept(self, before: tuple[Trial, ...], after: tuple[Trial, ...], measure: Measure) -> None:
        """A loader that takes 40 ms a step holds the steps steady, and once it takes 10 they waver
        as the machine does, from 11 to 15 ms: by the spread of before, a change of nothing was then
        called faster in 22 of 100 contests. Learnt anew, 4 of 100 are."""
        waited, waits = (
            median([trial.input_share or 0.0 for trial in trials] or [0.0])
            for trials in (before, after)
        )
        shorter = typical_ms(before) >= SHORTER * typical_ms(after)
        shows = waited >= HIDDEN and waits < waited / 2 and shorter
        if not shows or measure.varies == "memory":
            return
        pool, earlier = Pool(), self.now(measure).spread / math.sqrt(2)
        pool.assume(max(median(map(_inside, after)), earlier, WAVERS))
        pool.runs([math.log(value) for value in map(measure.of, after) if value])
        self._now[measure.varies] = pool

    def control(self, measure: Measure) -> Ratio | None:
        """The program against itself: every other run against the one before it."""
        known = self._known(measure)
        pairs = [a - b for a, b in zip(known[::2], known[1::2], strict=False)]
        if not pairs:
            return None
        mean, low, high = self.unchanged(measure).interval(pairs, 0.05)
        return Ratio(
            value=math.exp(mean), ci_low=math.exp(low), ci_high=math.exp(min(high, 50.0)),
            pairs=len(pairs),
        )  # fmt: skip

    def noise(self, measure: Measure) -> float:
        """Of a process; 0 where there was but one."""
        return self.unchanged(measure).spread / math.sqrt(2) if len(self._baseline) > 1 else 0.0

    def _known(self, measure: Measure) -> list[float]:
        """But the first: it reads the program's files from disk and finds a cold device, 22.8 ms a
        step beside 18.3 twice on an H200."""
        known = [math.log(value) for value in map(measure.of, self._baseline) if value]
        return known[1:] if len(known) > 2 else known


def _inside(trial: Trial) -> float:
    """How far the parts of one trial lie apart."""
    size = len(trial.step_ns) // PARTS
    if not size:
        return 0.0
    parts = [math.log(median(trial.step_ns[at * size : (at + 1) * size])) for at in range(PARTS)]
    return stdev(parts)

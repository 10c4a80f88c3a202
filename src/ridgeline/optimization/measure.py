"""What is made smaller, by the goal: a number of a trial, less is better."""

from collections.abc import Callable
from statistics import median
from typing import Literal

from msgspec import Struct

from ridgeline.records.optimized import Goal, Measured
from ridgeline.records.trial import Trial
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

"""What a step takes in the long run, of the times of steps that follow each other.

The median is what a typical step takes, and a single stall does not move it. But where workers make
the batches, steps come in bursts: of four workers that hold the program back each delivers at the
same moment, so three steps of four find their batch ready and the fourth waits for all. The median
is then the time of a step that waits for nothing. Measured: a store that answers one request at a
time, 27.7 ms a step with no workers and 27.6 with four, whose medians are 26.6 and 1.7.
"""

from collections.abc import Sequence
from statistics import fmean, median

from ridgeline.statistics.steady import settled

AGREE = 0.05
"""Mean and median this close: the median, which a stall moves less."""


def pace(times: Sequence[float]) -> float:
    """The median of the steady steps; their mean, where a median hides how they come."""
    start = min(settled(times), len(times) // 2)
    steady = times[start:]
    middle = float(median(steady))
    if middle <= 0 or _agree(fmean(steady), middle) or _agree(_without_a_stall(steady), middle):
        return middle
    return fmean(steady)


def _agree(mean: float, middle: float) -> bool:
    return abs(mean / middle - 1) <= AGREE


def _without_a_stall(times: Sequence[float]) -> float:
    """The mean, as if the longest had been like the others."""
    return (sum(times) - max(times)) / max(len(times) - 1, 1)

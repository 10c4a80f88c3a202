"""Comparison by few pairs of processes, with a spread that is pooled over all comparisons.

A process takes seconds to start, so a fix gets one to six pairs, too few to estimate their spread:
with two pairs, Student's t demands a difference of 12.7 standard errors. But every comparison on
the same machine says something about the spread, also that of the baseline with itself, so the
spread is pooled over all of them. One pair is enough if the difference is many times the spread.

In a simulation of 800 comparisons whose processes differ by 3 %, after five runs of the baseline,
identical programs were called faster in 1.9 %. Of programs that are 5, 10, 20 and 70 % faster, 55,
99, 100 and 100 % were found, with 5.0, 3.2, 1.9 and 1.0 pairs on average
(tests/unit/statistics/test_pooled.py checks this).
"""

import math
from collections.abc import Sequence

from ridgeline.statistics.significance import critical_t

LOOKS: dict[int, float] = {1: 0.002, 2: 0.008, 3: 0.012, 4: 0.015, 6: 0.020}
"""The numbers of pairs after which the comparison is judged, each with the two-sided level of that
look. Together they come to 5 %, as the simulation shows."""
MAX_PAIRS = max(LOOKS)
MIN_SPREAD = 0.004
"""The smallest spread of log-ratios that is believed. A few processes that happen to agree do not
prove a machine without noise."""

ASSUMED_SPREAD = 0.015
"""The spread of one process's log time that is assumed before anything is known, with the weight of
`ASSUMED_FREEDOM` degrees of freedom. Without it, a few runs that happen to agree, or to differ,
would rule the first intervals."""
ASSUMED_FREEDOM = 2


class Pool:
    """The spread of one pair's log-ratio, pooled over all comparisons so far."""

    def __init__(self) -> None:
        self._squares = 0.0
        self._freedom = 0

    def add_runs(self, logs: Sequence[float]) -> None:
        """Add log times of one program, each of a process of its own. The spread of a pair is √2
        times theirs."""
        if len(logs) > 1:
            mean = sum(logs) / len(logs)
            self._squares += 2 * sum((log - mean) ** 2 for log in logs)
            self._freedom += len(logs) - 1

    def add_run(self, before: Sequence[float], log: float) -> None:
        """Add one more log time of a program whose log times `before` were added by `add_runs`. The
        result is the same as if all had been added together."""
        if before:
            count, mean = len(before), sum(before) / len(before)
            self._squares += 2 * (log - mean) ** 2 * count / (count + 1)
            self._freedom += 1

    def add_assumption(self, inside: float) -> None:
        """Add the assumed spread. `inside` is the spread within one process, as a standard
        deviation of log times: where times vary within a process, they also vary between processes.
        With this, and a spread between processes of twice `inside`, identical programs are called
        faster in 2 to 3 % of cases after two runs."""
        self._squares += ASSUMED_FREEDOM * 2 * max(inside, ASSUMED_SPREAD) ** 2
        self._freedom += ASSUMED_FREEDOM

    def add_comparison(self, differences: Sequence[float]) -> None:
        """Add log-ratios of two different programs."""
        if len(differences) > 1:
            mean = sum(differences) / len(differences)
            self._squares += sum((d - mean) ** 2 for d in differences)
            self._freedom += len(differences) - 1

    def including(self, differences: Sequence[float]) -> "Pool":
        """Return a copy of this pool to which a comparison of two different programs was added."""
        copy = Pool()
        copy._squares, copy._freedom = self._squares, self._freedom
        copy.add_comparison(differences)
        return copy

    @property
    def spread(self) -> float:
        """The standard deviation of one pair's log-ratio; infinite if nothing was added."""
        if not self._freedom:
            return math.inf
        return max(math.sqrt(self._squares / self._freedom), MIN_SPREAD)

    def interval(self, differences: Sequence[float], alpha: float) -> tuple[float, float, float]:
        """Return mean, low and high of the log-ratio; low and high are infinite if no spread is
        known."""
        mean = sum(differences) / len(differences)
        whole = self.including(differences)
        if not whole._freedom:
            return mean, -math.inf, math.inf
        reach = critical_t(alpha, whole._freedom) * whole.spread
        reach /= math.sqrt(len(differences))
        return mean, mean - reach, mean + reach

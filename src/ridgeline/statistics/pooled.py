"""Few pairs of processes, compared by a spread learned from all of them.

A process takes seconds to start, so a change gets two to six pairs, too few for a spread of its
own: with two, Student's t needs 12.7 times it. But every comparison on the same machine tells the
spread, the unchanged program beside itself too, so it is pooled over all of them. One pair is
enough where the difference is many times the spread. Simulated, 800 comparisons whose processes
differ by 3 %, after five runs of the unchanged program: identical ones called faster in 1.9 %; of
programs 5, 10, 20 and 70 % faster 55, 99, 100 and 100 % are found, with 5.0, 3.2, 1.9 and 1.0 pairs
on average (tests/unit/statistics/test_pooled.py holds it to that).
"""

import math
from collections.abc import Sequence

from ridgeline.statistics.significance import critical_t

LOOKS: dict[int, float] = {1: 0.002, 2: 0.008, 3: 0.012, 4: 0.015, 6: 0.020}
"""Pairs, and the two-sided level of that look; together 5 %, as the simulation shows."""
MOST = max(LOOKS)
LEAST_SPREAD = 0.004
"""Of log-ratios: a few processes that happen to agree do not prove a machine without noise."""


ASSUMED = 0.015
"""Of a process, before anything is known, and this or more with two degrees of freedom: after few
runs that happen to agree, or to differ, a factor of two would have no interval."""
ASSUMED_FREEDOM = 2


class Pool:
    """The spread of one pair's log-ratio, over all comparisons so far."""

    def __init__(self) -> None:
        self._squares = 0.0
        self._freedom = 0

    def same(self, differences: Sequence[float]) -> None:
        """Of a program with itself: their mean is known to be zero."""
        self._squares += sum(d * d for d in differences)
        self._freedom += len(differences)

    def runs(self, logs: Sequence[float]) -> None:
        """Of one program, each in a process of its own: a pair differs by √2 of their spread."""
        if len(logs) > 1:
            mean = sum(logs) / len(logs)
            self._squares += 2 * sum((one - mean) ** 2 for one in logs)
            self._freedom += len(logs) - 1

    def one_more(self, before: Sequence[float], log: float) -> None:
        """Of the program that had those `runs`: as if it had been among them."""
        if before:
            count, mean = len(before), sum(before) / len(before)
            self._squares += 2 * (log - mean) ** 2 * count / (count + 1)
            self._freedom += 1

    def assume(self, inside: float) -> None:
        """`inside`: how far parts of one process lie apart, as a standard deviation of logarithms.
        A machine that wavers within a process wavers between them. With it, and processes twice as
        far apart, identical programs are called faster in 2 to 3 % after two runs."""
        self._squares += ASSUMED_FREEDOM * 2 * max(inside, ASSUMED) ** 2
        self._freedom += ASSUMED_FREEDOM

    def others(self, differences: Sequence[float]) -> None:
        """Of two different programs."""
        if len(differences) > 1:
            mean = sum(differences) / len(differences)
            self._squares += sum((d - mean) ** 2 for d in differences)
            self._freedom += len(differences) - 1

    def with_(self, differences: Sequence[float]) -> "Pool":
        both = Pool()
        both._squares, both._freedom = self._squares, self._freedom
        both.others(differences)
        return both

    @property
    def spread(self) -> float:
        if not self._freedom:
            return math.inf
        return max(math.sqrt(self._squares / self._freedom), LEAST_SPREAD)

    def interval(self, differences: Sequence[float], alpha: float) -> tuple[float, float, float]:
        """Mean, low and high of the log-ratio; infinite where no spread is known."""
        mean = sum(differences) / len(differences)
        whole = self.with_(differences)
        if not whole._freedom:
            return mean, -math.inf, math.inf
        reach = critical_t(alpha, whole._freedom) * whole.spread
        reach /= math.sqrt(len(differences))
        return mean, mean - reach, mean + reach

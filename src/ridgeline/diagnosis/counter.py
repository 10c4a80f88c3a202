"""How much a counter grew, or a rate amounted to, between two moments, from samples around them."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

NEAR_NS = 2_000_000_000
"""How far outside the span a sample may lie and still say something about its end: samples come
ten times a second, and once a second in a long run."""
_ENOUGH = 0.5

Points = Sequence[tuple[int, float]]
"""(time, value), in the order of time."""


def growth(points: Points, start_ns: int, end_ns: int) -> float | None:
    """Of a counter, linear between samples; None where samples cover less than half the span, or
    the counter went back (it was reset). A part that is not covered grew as the rest did."""
    near = _near(points, start_ns, end_ns)
    covered = _covered(near, start_ns, end_ns)
    # Two samplers of one counter may read it in the other order than their clocks say, by a hair;
    # a reset starts near nothing.
    if covered is None or any(b < a / 2 for (_, a), (_, b) in pairwise(near)):
        return None
    first, last = covered
    grown = (_at(near, last) - _at(near, first)) * (end_ns - start_ns) / (last - first)
    return grown if grown >= 0 else None


def amount(points: Points, start_ns: int, end_ns: int) -> float | None:
    """Of a rate a second, summed by trapezes; None as for `growth`."""
    near = _near(points, start_ns, end_ns)
    covered = _covered(near, start_ns, end_ns)
    if covered is None:
        return None
    first, last = covered
    inner = [(at, value) for at, value in near if first < at < last]
    path = [(first, _at(near, first)), *inner, (last, _at(near, last))]
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(path))
    return area / 1e9 * (end_ns - start_ns) / (last - first)


def _near(points: Points, start_ns: int, end_ns: int) -> list[tuple[int, float]]:
    return [(at, v) for at, v in points if start_ns - NEAR_NS <= at <= end_ns + NEAR_NS]


def _covered(points: Points, start_ns: int, end_ns: int) -> tuple[int, int] | None:
    if len(points) < 2 or end_ns <= start_ns:
        return None
    first, last = max(points[0][0], start_ns), min(points[-1][0], end_ns)
    return (first, last) if last - first >= _ENOUGH * (end_ns - start_ns) else None


def _at(points: Points, at_ns: int) -> float:
    """Between the samples on both sides of a moment that they enclose."""
    after = bisect_left(points, at_ns, key=lambda point: point[0])
    if points[after][0] == at_ns:
        return points[after][1]
    (t0, v0), (t1, v1) = points[after - 1], points[after]
    return v0 + (v1 - v0) * (at_ns - t0) / (t1 - t0)

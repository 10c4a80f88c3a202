"""Interval algebra on int64 arrays: half-open spans [start, end), exact to the nanosecond.

A `Spans` is sorted and disjoint, with nothing empty: what `union` makes. Everything else keeps it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.columns import Events

Times = NDArray[np.int64]


class Spans(NamedTuple):
    start: Times
    end: Times

    @property
    def total(self) -> int:
        return int((self.end - self.start).sum())

    def __len__(self) -> int:  # the number of spans, not of fields
        return len(self.start)


NOTHING = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Times, end: Times, *, sorted_: bool = False) -> Spans:
    """Return the time that at least one interval covers; touching intervals become one."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return NOTHING
    if not sorted_:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.empty(len(start), bool)
    opens[0] = True
    np.greater(start[1:], reach[:-1], out=opens[1:])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(start)) - 1
    return Spans(start[first], reach[last])


def time_of(table: Events, rows: NDArray[np.bool_]) -> Spans:
    """Return the time that the chosen rows cover. Tables are ordered by start."""
    return union(table.ts[rows], table.end[rows], sorted_=True)


def clip(spans: Spans, low: int, high: int) -> Spans:
    start, end = np.maximum(spans.start, low), np.minimum(spans.end, high)
    keep = end > start
    return Spans(start[keep], end[keep])


def closed(spans: Spans, pause: int) -> Spans:
    """Return the spans with pauses up to this length filled."""
    filled = union(spans.start, spans.end + pause, sorted_=True)
    return Spans(filled.start, filled.end - pause)


def gaps(spans: Spans, low: int, high: int) -> Spans:
    """Return the part of [low, high) that the spans do not cover."""
    inside = clip(spans, low, high)
    start = np.append(np.int64(low), inside.end)
    end = np.append(inside.start, np.int64(high))
    keep = end > start
    return Spans(start[keep], end[keep])


def intersect(one: Spans, other: Spans) -> Spans:
    """Return the time that both cover."""
    if not len(one) or not len(other):
        return NOTHING
    # every span of `one` meets a run of consecutive spans of `other`
    first = np.searchsorted(other.end, one.start, side="right")
    last = np.searchsorted(other.start, one.end, side="left")
    counts = np.maximum(last - first, 0)
    rows = np.repeat(np.arange(len(one)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    cols = np.repeat(first, counts) + within
    return Spans(
        np.maximum(one.start[rows], other.start[cols]), np.minimum(one.end[rows], other.end[cols])
    )


def subtract(one: Spans, other: Spans) -> Spans:
    """Return the time that `one` covers and `other` does not."""
    if not len(one) or not len(other):
        return one
    low, high = int(one.start[0]), int(one.end[-1])
    return intersect(one, gaps(other, low, high))


def merge(*many: Spans) -> Spans:
    """Return the time that any of them covers."""
    return union(
        np.concatenate([s.start for s in many] or [NOTHING.start]),
        np.concatenate([s.end for s in many] or [NOTHING.end]),
    )


def evenly_spread(spans: Spans, count: int) -> Times:
    """Return `count` moments spread evenly over the spans, without the gaps between spans."""
    length = spans.end - spans.start
    at = (np.arange(count) + 0.5) * (spans.total / count)
    before = np.concatenate(([0], np.cumsum(length)[:-1]))
    which = np.searchsorted(before, at, side="right") - 1
    moments: Times = (spans.start[which] + (at - before[which])).astype(np.int64)
    return moments


def covered(spans: Spans, start: Times, end: Times) -> Times:
    """Return for each interval [start, end) how much of it the spans cover."""
    if not len(spans):
        return np.zeros(len(start), np.int64)
    overlap: Times = np.maximum(_before(spans, end) - _before(spans, start), 0)
    return overlap


def _before(spans: Spans, at: Times) -> Times:
    """Return how much the spans cover before each moment."""
    length: Times = np.append(np.int64(0), np.cumsum(spans.end - spans.start))
    index = np.searchsorted(spans.start, at, side="right")
    over = np.maximum(spans.end[np.maximum(index - 1, 0)] - at, 0)
    before: Times = length[index] - np.where(index > 0, over, 0)
    return before


def innermost(
    start: Times, end: Times, at: Times, above: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return for each moment the row of the innermost interval around it; -1 where there is none.

    The intervals must be nested (one thread's calls) and ordered by start, longer first.
    """
    if not len(start):
        return np.full(len(at), -1, np.int64)
    if above is None:
        above = parents(start, end)
    row = np.searchsorted(start, at, side="right") - 1
    while True:
        outside = (row >= 0) & (end[np.maximum(row, 0)] <= at)
        if not outside.any():
            return row.astype(np.int64)
        row = np.where(outside, above[np.maximum(row, 0)], row)


def parents(start: Times, end: Times) -> NDArray[np.int64]:
    """Return the enclosing row of each row, -1 for the outermost. Rows are ordered by start, longer
    first.

    Rows without length enclose nothing. Where rows overlap without nesting (clock jitter), a row
    counts as inside another that began before it and still ran when it began.
    """
    above = np.full(len(start), -1, np.int64)
    long = np.flatnonzero(end > start)
    begins, ends = start[long], end[long]
    # the depth of a row is the number of rows that began before it and have not ended
    depth = np.arange(len(long)) - np.searchsorted(np.sort(ends), begins, side="right")
    by_depth = np.argsort(depth, kind="stable")
    levels = np.searchsorted(depth[by_depth], np.arange(depth.max(initial=-1) + 2))
    for level in range(1, len(levels) - 1):
        over = by_depth[levels[level - 1] : levels[level]]
        rows = by_depth[levels[level] : levels[level + 1]]
        above[long[rows]] = long[over[np.searchsorted(over, rows) - 1]]
    short = np.flatnonzero(end <= start)
    if len(short) and len(long):
        row = np.searchsorted(begins, start[short], side="right") - 1
        outer = above[long]
        place = np.full(len(start) + 1, -1, np.int64)
        place[long] = np.arange(len(long))
        while (is_past := (row >= 0) & (ends[np.maximum(row, 0)] <= start[short])).any():
            row = np.where(is_past, place[outer[np.maximum(row, 0)]], row)
        above[short] = np.where(row >= 0, long[np.maximum(row, 0)], -1)
    return above

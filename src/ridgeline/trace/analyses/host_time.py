"""Stretches of host time by what ran in them: the innermost operator, else the call or the span
around, else Python."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.analyses.driving import synchronising
from ridgeline.trace.columns import Events
from ridgeline.trace.intervals import Spans, covered, parents, subtract, union
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace

PYTHON = "Python / no operator"


class Part(NamedTuple):
    name: str
    ns: int
    rows: int
    """Operators with that name that had a part in it."""


def host_time(
    trace: Trace, links: Links, lanes: NDArray[np.int64], lane: int, spans: Spans
) -> list[Part]:
    """Split the spans, which belong to `lane`; where it did nothing, another driving thread may
    have (the backward's, while the main one waits). The parts add up."""
    totals: dict[int, tuple[int, int]] = {}
    left = spans
    for table in _layers(trace, links, lanes, lane):
        if not len(left):
            break
        rows = np.flatnonzero(covered(left, table.ts, table.end) > 0)
        if not len(rows):
            continue
        layer = table.take(rows)
        start, end, row = leaves(layer.ts, layer.end)
        for name, ns, count in _shares(layer, row, covered(left, start, end)):
            before = totals.get(name, (0, 0))
            totals[name] = (before[0] + ns, before[1] + count)
        left = subtract(left, union(start, end, sorted_=True))
    parts = [Part(trace.text(name), ns, count) for name, (ns, count) in totals.items()]
    return [*parts, Part(PYTHON, left.total, len(left))] if len(left) else parts


def _layers(trace: Trace, links: Links, lanes: NDArray[np.int64], lane: int) -> Iterator[Events]:
    """What may hold a moment, the nearest first."""
    ops, calls, spans = trace.ops, trace.calls, trace.annotations
    # a launch is its operator's time; a call that waits, or outside operators, is its own
    alone = synchronising(trace, calls) | (links.call_op < 0)
    for one in [lane, *(other for other in lanes.tolist() if other != lane)]:
        yield calls.take(alone & (calls.lane == one))
        yield ops.take(ops.lane == one)
    steps = trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
    for one in dict.fromkeys([lane, links.main_lane]):
        yield spans.take(~steps & (spans.lane == one))


def _shares(
    layer: Events, row: NDArray[np.int64], ns: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """(name, ns, rows) of pieces of events."""
    total = np.zeros(int(layer.name.max()) + 2, np.int64)  # the last: no name (-1)
    np.add.at(total, layer.name[row], ns)
    seen = np.zeros(len(layer), bool)
    seen[row[ns > 0]] = True
    count = np.zeros(len(total), np.int64)
    np.add.at(count, layer.name[seen], 1)
    names = np.flatnonzero(total)
    return list(zip(names.tolist(), total[names].tolist(), count[names].tolist(), strict=True))


def leaves(
    start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Nested intervals cut into pieces: each piece with the innermost row around it.

    Ordered by start, longer first. A row that outlives the one around it is cut at that one's end.
    """
    above = parents(start, end)
    while True:
        around = np.where(above >= 0, end[np.maximum(above, 0)], np.iinfo(np.int64).max)
        if (end <= around).all():
            break
        end = np.minimum(end, around)
    rows = np.flatnonzero(end > start)
    # where a row ends, the row above goes on: inner ends come before outer ones
    inner_first = rows[::-1]
    ends = inner_first[np.argsort(end[inner_first], kind="stable")]
    times = np.concatenate([end[ends], start[rows]])
    owner = np.concatenate([above[ends], rows])
    order = np.argsort(times, kind="stable")
    times, owner = times[order], owner[order]
    low, high, owner = times[:-1], times[1:], owner[:-1]
    keep = (high > low) & (owner >= 0)
    return low[keep], high[keep], owner[keep]

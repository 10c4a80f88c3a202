"""Links between the tables of a trace: device work to its launching call, calls to operators, rows
to the rows that enclose them. Each link is computed once, when it is first used."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.columns import Events
from ridgeline.trace.intervals import innermost, parents
from ridgeline.trace.trace import Trace

Rows = NDArray[np.int64]
"""Row numbers into another table; -1 where there is none."""


class Links:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def device_call(self) -> Rows:
        """The launching call of each device operation, by correlation id."""
        device, calls = self._trace.device, self._trace.calls
        return _join(device.correlation, calls.correlation)

    @cached_property
    def call_op(self) -> Rows:
        """The innermost operator of each call, by time on the same thread."""
        return enclosing(self._trace.calls, self._trace.ops, self.op_parent)

    @cached_property
    def device_op(self) -> Rows:
        """The operator of each device operation: the one that its call was made in, else by
        external id."""
        call = self.device_call
        by_call = np.where(call >= 0, at_rows(self.call_op, call), -1)
        device, ops = self._trace.device, self._trace.ops
        return np.where(by_call >= 0, by_call, _join(device.external, ops.external))

    @cached_property
    def op_parent(self) -> Rows:
        """The enclosing operator of each operator on its thread."""
        return nested(self._trace.ops)

    @cached_property
    def frame_parent(self) -> Rows:
        """The caller of each Python function on its thread."""
        return nested(self._trace.frames)

    @cached_property
    def op_frame(self) -> Rows:
        """The innermost Python function of each operator on its thread."""
        return enclosing(self._trace.ops, self._trace.frames, self.frame_parent)

    @cached_property
    def launch_lane(self) -> NDArray[np.int32]:
        """The host thread (lane) that launched each device operation; -1 where unknown."""
        call, op = self.device_call, self.device_op
        by_op = np.where(op >= 0, at_rows(self._trace.ops.lane, op), -1)
        return np.where(call >= 0, at_rows(self._trace.calls.lane, call), by_op).astype(np.int32)

    @cached_property
    def main_lane(self) -> int:
        """The host thread that drives the program: it has the step marks, else the Python stacks,
        else the process's own number, else the most operators (which backward's may have)."""
        trace = self._trace
        first = [i for i, lane in enumerate(trace.lanes) if lane.pid == lane.tid]
        own = trace.ops.take(np.isin(trace.ops.lane, first))
        for table in (self._steps(), trace.frames, own, trace.ops, trace.annotations, trace.calls):
            if len(table):
                count = np.bincount(table.lane)
                tied = np.flatnonzero(count == count.max()).tolist()
                return next((lane for lane in tied if lane in first), tied[0])
        return -1

    def _steps(self) -> Events:
        spans = self._trace.annotations
        rows = self._trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
        return spans.take(rows)


def nested(table: Events) -> Rows:
    """Return the enclosing row of each row in the same table and lane."""
    above = np.full(len(table), -1, np.int64)
    for rows in by_lane(table):
        local_rows = parents(table.ts[rows], table.end[rows])
        above[rows] = np.where(local_rows >= 0, rows[np.maximum(local_rows, 0)], -1)
    return above


def enclosing(inner: Events, outer: Events, above: Rows) -> Rows:
    """Return for each row of `inner` the innermost row of `outer` that runs on its lane at its
    start."""
    enclosing_rows = np.full(len(inner), -1, np.int64)
    lanes = {int(outer.lane[rows[0]]): rows for rows in by_lane(outer)}
    for rows in by_lane(inner):
        around = lanes.get(int(inner.lane[rows[0]]))
        if around is None:
            continue
        local = np.full(len(outer), -1, np.int64)
        local[around] = np.arange(len(around))
        up = above[around]
        up = np.where(up >= 0, local[np.maximum(up, 0)], -1)
        local_rows = innermost(outer.ts[around], outer.end[around], inner.ts[rows], up)
        enclosing_rows[rows] = np.where(local_rows >= 0, around[np.maximum(local_rows, 0)], -1)
    return enclosing_rows


def by_lane(table: Events) -> list[Rows]:
    """Return the row numbers lane by lane, each in order of start."""
    if not len(table):
        return []
    order = np.argsort(table.lane, kind="stable")
    cuts = np.flatnonzero(np.diff(table.lane[order])) + 1
    return np.split(order, cuts)


def _join(wanted: NDArray[np.int64], keys: NDArray[np.int64]) -> Rows:
    """Return the last row of `keys` that holds each wanted id; ids of 0 and below name nothing."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    at = np.searchsorted(ordered, wanted, side="right") - 1
    is_found = (at >= 0) & (wanted > 0) & (ordered[np.maximum(at, 0)] == wanted)
    return np.where(is_found, order[np.maximum(at, 0)], -1)


def links_of(trace: Trace) -> Links:
    """Return the links of a trace, which the trace keeps. The diagnosis uses links that the study
    has computed already: 2 s for 5 million events."""
    links = vars(trace).setdefault("links", Links(trace))
    assert isinstance(links, Links)
    return links


def at_rows(values: NDArray[np.generic], rows: Rows) -> NDArray[np.generic]:
    """Return values[rows]. The result is arbitrary for rows that are -1."""
    return values[np.maximum(rows, 0)] if len(values) else np.full(len(rows), -1)


def beneath(parent: Rows, own: Rows) -> Rows:
    """Return the sum of each row's own number and those of all rows under it, exact."""
    total = own.astype(np.int64, copy=True)
    levels = _levels(parent)
    for rows in reversed(levels[1:]):
        np.add.at(total, parent[rows], total[rows])
    return total


def repeated(parent: Rows, key: Rows) -> NDArray[np.bool_]:
    """Return which rows have a row of the same key above them: aten::to inside aten::to."""
    is_repeated = np.zeros(len(parent), bool)
    rows = np.flatnonzero(parent >= 0)
    above = parent[rows]
    while len(rows):
        same = key[above] == key[rows]
        is_repeated[rows[same]] = True
        above = parent[above]
        goes_on = (above >= 0) & ~same
        rows, above = rows[goes_on], above[goes_on]
    return is_repeated


def own_time(parent: Rows, dur: Rows) -> Rows:
    """Return the time of each row without its direct callees; 0 if that is negative, because clocks
    disagree."""
    own = dur.astype(np.int64, copy=True)
    child = np.flatnonzero(parent >= 0)
    np.subtract.at(own, parent[child], dur[child])
    return np.maximum(own, 0)


def inherited(number: Rows, parent: Rows) -> Rows:
    """Return the number of each row; a row without one (-1) has that of the nearest row above it
    with one."""
    here = np.arange(len(parent))
    source = np.where((number >= 0) | (parent < 0), here, parent)
    while not np.array_equal(further := source[source], source):  # each pass climbs twice as far
        source = further
    return number[source]


def _levels(parent: Rows) -> list[Rows]:
    """Return the rows by how many rows lie above them."""
    depth = (parent >= 0).astype(np.int64)
    above = parent
    while (linked := above >= 0).any():  # each pass climbs twice as far
        depth = depth + np.where(linked, depth[above], 0)
        above = np.where(linked, above[above], -1)
    order = np.argsort(depth, kind="stable")
    cuts = np.searchsorted(depth[order], np.arange(1, depth.max(initial=0) + 1))
    return np.split(order, cuts)


MAX_MARKED_KEYS = 1 << 20
"""Up to so many possible keys, marking each key in a table is faster than sorting the rows."""


def distinct(*columns: NDArray[np.integer]) -> tuple[Rows, Rows]:
    """Return the distinct rows (one a row of the matrix), in order, and the number of each row
    among them."""
    key = np.zeros(len(columns[0]), np.int64)
    width = 1
    for column in columns:
        low = int(column.min(initial=0))
        span = int(column.max(initial=0)) - low + 1
        if width * span >= 2**62:  # numbers the rows so far: there are no more than rows
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
            width = len(key) + 1
        key = key * span + (column.astype(np.int64) - low)
        width *= span
    first, number = (
        _distinct_by_table(key, width)
        if width <= MAX_MARKED_KEYS + 2 * len(key)
        else _distinct_by_sorting(key)
    )
    return np.stack([c[first].astype(np.int64) for c in columns], axis=1), number


def _distinct_by_table(key: Rows, width: int) -> tuple[Rows, Rows]:
    row = np.full(width, -1, np.int64)
    row[key[::-1]] = np.arange(len(key) - 1, -1, -1)  # the last write wins: the first row
    keys_present = np.flatnonzero(row >= 0)
    number = np.empty(width, np.int64)
    number[keys_present] = np.arange(len(keys_present))
    return row[keys_present], number[key]


def _distinct_by_sorting(key: Rows) -> tuple[Rows, Rows]:
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return first, number


def sums_by(group: NDArray[Any], values: Any, size: int) -> NDArray[np.int64]:
    """Return the sum of the values of each of `size` groups, given the group of each value."""
    total = np.zeros(size, np.int64)
    np.add.at(total, group, values)
    return total

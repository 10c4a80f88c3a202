"""Which host threads drive the device, which calls only wait for it, and when and where each
device operation was launched. Knows no phases and no causes."""

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Window
from ridgeline.trace.columns import Calls, Events
from ridgeline.trace.host_states import is_waiting_call
from ridgeline.trace.intervals import Spans, union
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace, once_per_trace

_BLOCKING = ("cudaMemcpy", "cuMemcpy", "hipMemcpy", "hipMemcpyWithStream")
"""Copies that return when the copy is done, unlike their …Async sisters."""


def synchronising(trace: Trace, calls: Calls) -> NDArray[np.bool_]:
    return trace.names_where(calls.name, is_waiting_call)


def blocking(trace: Trace, calls: Calls) -> NDArray[np.bool_]:
    """Return the copies that may hold the host: all but peer copies and fills."""
    return trace.names_where(
        calls.name, lambda name: name in _BLOCKING or "MemcpyAsync" in name or "MemcpyDto" in name
    )


@once_per_trace
def driving_lanes(trace: Trace, links: Links) -> NDArray[np.int64]:
    """Return the threads that launch device work, and the main one; without device work, all with
    operators. Watchdogs that poll events and threads that pin memory drive nothing."""
    launching = links.launch_lane[links.launch_lane >= 0]
    drive = launching if len(launching) else trace.ops.lane
    lanes = np.unique(np.append(drive, links.main_lane)).astype(np.int64)
    return lanes[lanes >= 0]


@once_per_trace
def launched(trace: Trace, links: Links) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when each device operation was launched and on which lane; lane -1 where that is not
    known."""
    moment = np.full(len(trace.device), -1, np.int64)
    call, op = links.device_call, links.device_op
    by_op, by_call = np.flatnonzero((op >= 0) & (call < 0)), np.flatnonzero(call >= 0)
    moment[by_op] = trace.ops.ts[op[by_op]]
    moment[by_call] = trace.calls.ts[call[by_call]]
    return moment, links.launch_lane.astype(np.int64)


def on_lanes(table: Events, lanes: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.isin(table.lane, lanes)


def time_of(table: Events, rows: NDArray[np.bool_]) -> Spans:
    """Return the time that the picked rows cover; tables are ordered by start."""
    return union(table.ts[rows], table.end[rows], sorted_=True)


def started_in(table: Events, low: int, high: int) -> slice:
    """Return the rows that start in [low, high)."""
    first, last = np.searchsorted(table.ts, [low, high], side="left")
    return slice(int(first), int(last))


def within(table: Events, window: Window) -> NDArray[np.int64]:
    """Return the numbers of the rows that start in the window. Tables are ordered by start, so
    these rows are neighbours."""
    first, last = np.searchsorted(table.ts, [window.start_ns, window.end_ns], side="left")
    return np.arange(first, max(first, last), dtype=np.int64)

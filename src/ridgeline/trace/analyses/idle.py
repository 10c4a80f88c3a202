"""Why the device was idle: every idle nanosecond gets one cause, and the user's line where known.

A gap [a, b) ends when some operation starts. Its launching call divides the gap: before the call
the host had not yet asked for the work, and what the host was in (host_states) is the cause; after
it the work was on its way. Where the host had been waiting for the device when it ran dry, as much
of the launching that follows as the wait was long is the synchronisation's price: without the wait
those launches would have come that much earlier.
"""

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Cause, Window
from ridgeline.trace.analyses.busy import busy_spans
from ridgeline.trace.columns import DeviceOps, Events
from ridgeline.trace.host_states import ORDER, HostStates, states_of, sync_spans
from ridgeline.trace.intervals import Spans, Times, closed, covered, gaps, merge, subtract, union
from ridgeline.trace.links import Links, Rows, at_rows
from ridgeline.trace.trace import Trace

CAUSES: tuple[Cause, ...] = get_args(Cause)
LATENCY_NS = 50_000
"""From call to kernel a launch takes 3 to 20 µs; beyond 50 it is not the launch that is slow."""
WAIT_PAUSE_NS = 10_000
"""Two waits less than this apart are one: a copy back and the synchronisation after it."""
UNLINKED_NS = 10_000
"""A gap this short before work without a launch record is the device's own, between kernels."""


class Hosts:
    """The states behind each launching thread: its own, and where it slept the other drivers'."""

    def __init__(self, trace: Trace, links: Links) -> None:
        lanes = set(np.unique(links.launch_lane).tolist()) | {links.main_lane}
        self._own = {lane: states_of(trace, links, lane) for lane in lanes if lane >= 0}
        self._seen: dict[int, HostStates] = {}
        self.any = any(len(states.active) for states in self._own.values())

    def of(self, lane: int) -> HostStates:
        if lane not in self._seen:
            self._seen[lane] = self._merged(lane)
        return self._seen[lane]

    def _merged(self, lane: int) -> HostStates:
        own = self._own[lane]
        spans, active = dict(own.spans), own.active
        for other, states in self._own.items():
            if other == lane:
                continue
            for cause in ORDER:
                spans[cause] = merge(spans[cause], subtract(states.spans[cause], active))
            active = merge(active, states.active)
        return HostStates(spans, active)


@dataclass(frozen=True, slots=True)
class IdleGaps:
    """Every gap of one device; `ns` has a row a gap and a column a cause of CAUSES."""

    device: int
    start: Times
    end: Times
    ns: NDArray[np.int64]
    next_op: Rows
    """The device operation that ended it (row in trace.device); -1 at the window's end."""
    previous_op: Rows
    lane: Rows
    """The host thread that launched the next operation."""
    sync: Rows
    """Row in `sync_spans` of the wait that opened it; -1 otherwise."""
    launched: Times
    """When the next operation's launching call began; -1 where unknown."""
    hosts: Hosts

    @property
    def dur(self) -> Times:
        return self.end - self.start

    @property
    def dominant(self) -> Rows:
        """The cause (index into CAUSES) that has most of each gap."""
        found: Rows = np.argmax(self.ns, axis=1)
        return found


def idle_gaps(trace: Trace, links: Links, window: Window) -> tuple[IdleGaps, ...]:
    """The gaps of each device, attributed."""
    found = []
    states = Hosts(trace, links)
    for device in np.unique(trace.device.device):
        rows = np.flatnonzero(trace.device.device == device)
        found.append(_of_device(trace, links, window, int(device), rows, states))
    return tuple(found)


def _of_device(
    trace: Trace, links: Links, window: Window, device: int, rows: Rows, hosts: Hosts
) -> IdleGaps:
    ops = trace.device.take(rows)
    idle = gaps(busy_spans(ops, window), window.start_ns, window.end_ns)
    after, before = _neighbours(ops, idle)
    next_op = np.where(after >= 0, rows[np.maximum(after, 0)], -1)
    call = np.where(next_op >= 0, links.device_call[np.maximum(next_op, 0)], -1)
    launched = np.where(call >= 0, at_rows(trace.calls.ts, call), -1)
    lane = np.where(next_op >= 0, links.launch_lane[np.maximum(next_op, 0)], -1)
    lane = np.where(lane >= 0, lane, links.main_lane).astype(np.int64)
    asked = np.where(call >= 0, np.clip(launched, idle.start, idle.end), idle.end)
    ns = np.zeros((len(idle), len(CAUSES)), np.int64)
    for one in np.unique(lane):
        at = np.flatnonzero(lane == one)
        _host_part(ns, at, hosts.of(int(one)) if one >= 0 else None, idle.start, asked)
    waits = sync_spans(trace, links)
    sync = _opened_by(waits, idle)
    _device_part(ns, idle, asked, call >= 0)
    _charge_syncs(ns, _waited(waits, idle))
    short = (call < 0) & (next_op >= 0) & (idle.end - idle.start <= UNLINKED_NS)
    ns[short] = 0
    ns[short, CAUSES.index("between kernels")] = (idle.end - idle.start)[short]
    if not hosts.any:
        ns[:] = 0
        ns[:, CAUSES.index("unknown")] = idle.end - idle.start
    return IdleGaps(
        device=device,
        start=idle.start,
        end=idle.end,
        ns=ns,
        next_op=next_op,
        previous_op=np.where(before >= 0, rows[np.maximum(before, 0)], -1),
        lane=lane,
        sync=sync,
        launched=launched,
        hosts=hosts,
    )


def _neighbours(ops: DeviceOps, idle: Spans) -> tuple[Rows, Rows]:
    """The operation that starts at each gap's end, and one that ended at its start."""
    after = np.searchsorted(ops.ts, idle.end, side="left")
    after = np.where(after < len(ops), after, -1)
    by_end = np.argsort(ops.end, kind="stable")
    last = np.searchsorted(ops.end[by_end], idle.start, side="right") - 1
    return after, np.where(last >= 0, by_end[np.maximum(last, 0)], -1)


def _host_part(
    ns: NDArray[np.int64], at: Rows, states: HostStates | None, start: Times, asked: Times
) -> None:
    """What the host was in from the gap's start until it asked for the work."""
    low, high = start[at], asked[at]
    rest = high - low
    for cause in ORDER if states is not None else ():
        assert states is not None
        part = covered(states.spans[cause], low, high)
        ns[at, CAUSES.index(cause)] += part
        rest = rest - part
    ns[at, CAUSES.index("other host")] += rest


def _device_part(
    ns: NDArray[np.int64], idle: Spans, asked: Times, linked: NDArray[np.bool_]
) -> None:
    """From the request to the start: the launch's latency, or the device's own doing."""
    left = np.where(linked, idle.end - asked, 0)
    in_gap = asked > idle.start
    latency = np.where(in_gap, np.minimum(left, LATENCY_NS), 0)
    ns[:, CAUSES.index("launch-bound")] += latency
    ns[:, CAUSES.index("between kernels")] += left - latency


def _opened_by(waits: Events, idle: Spans) -> Rows:
    """The wait the host was in when the device ran dry; the last to begin, -1 where none."""
    if not len(waits) or not len(idle):
        return np.full(len(idle), -1, np.int64)
    row = np.searchsorted(waits.ts, idle.start, side="right") - 1
    reach = np.maximum.accumulate(waits.end)
    held = (row >= 0) & (reach[np.maximum(row, 0)] >= idle.start)
    # of nested or parallel waits: the latest that still ran
    while (over := held & (waits.end[np.maximum(row, 0)] < idle.start)).any():
        row = np.where(over, row - 1, row)
        held &= row >= 0
    return np.where(held, row, -1)


def _waited(waits: Events, idle: Spans) -> Times:
    """How long the host had been waiting when the device ran dry: calls that follow one another
    (a copy back, then cudaStreamSynchronize) are one wait."""
    spans = closed(union(waits.ts, waits.end, sorted_=True), WAIT_PAUSE_NS)
    if not len(spans):
        return np.zeros(len(idle), np.int64)
    row = np.searchsorted(spans.start, idle.start, side="right") - 1
    at = np.maximum(row, 0)
    held = (row >= 0) & (spans.end[at] >= idle.start)
    return np.where(held, spans.end[at] - spans.start[at], 0)


def _charge_syncs(ns: NDArray[np.int64], waited: Times) -> None:
    """Without the wait the launches that follow would have come that much earlier."""
    launch, sync = CAUSES.index("launch-bound"), CAUSES.index("synchronisation")
    moved = np.minimum(ns[:, launch], waited)
    ns[:, launch] -= moved
    ns[:, sync] += moved

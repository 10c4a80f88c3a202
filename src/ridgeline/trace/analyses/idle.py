"""Why the device was idle: every idle nanosecond gets one cause, and the user's line where known.

A gap [a, b) ends when some operation starts. Its launching call divides the gap: before the call
the host had not yet asked for the work, and what the host was in (host_states) is the cause; after
it the work was on its way. Where the host had been waiting for the device when it ran dry, as much
of the launching that follows as the wait was long is the synchronisation's price: without the wait
those launches would have come that much earlier.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Cause, Gap, Idle, IdleCause, Place, Window
from ridgeline.records.trust import Trust
from ridgeline.trace.analyses.busy import busy_spans
from ridgeline.trace.columns import DeviceOps, Events
from ridgeline.trace.host_states import ORDER, HostStates, states_of, sync_spans
from ridgeline.trace.intervals import Spans, Times, closed, covered, gaps, merge, subtract, union
from ridgeline.trace.links import Links, Rows, at_rows, enclosing, nested
from ridgeline.trace.places import place_of, user_places
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.window import Steps

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
        """Return the cause (an index into CAUSES) of most of each gap."""
        found: Rows = np.argmax(self.ns, axis=1)
        return found


@once_per_trace
def idle_gaps(trace: Trace, links: Links, window: Window) -> tuple[IdleGaps, ...]:
    """Return the gaps of each device, with their causes."""
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
    """Return the operation that starts at the end of each gap, and one that ended at its start."""
    after = np.searchsorted(ops.ts, idle.end, side="left")
    after = np.where(after < len(ops), after, -1)
    by_end = np.argsort(ops.end, kind="stable")
    last = np.searchsorted(ops.end[by_end], idle.start, side="right") - 1
    return after, np.where(last >= 0, by_end[np.maximum(last, 0)], -1)


def _host_part(
    ns: NDArray[np.int64], at: Rows, states: HostStates | None, start: Times, asked: Times
) -> None:
    """Return what the host was in from the start of each gap until it asked for the work."""
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
    """Return the time from the request to the start of the work: the latency of the launch, or the
    device's own doing."""
    left = np.where(linked, idle.end - asked, 0)
    in_gap = asked > idle.start
    latency = np.where(in_gap, np.minimum(left, LATENCY_NS), 0)
    ns[:, CAUSES.index("launch-bound")] += latency
    ns[:, CAUSES.index("between kernels")] += left - latency


def _opened_by(waits: Events, idle: Spans) -> Rows:
    """Return the wait that the host was in when the device ran dry, the last to begin; -1 where
    there is none."""
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
    """Return how long the host had been waiting when the device ran dry. Calls that follow one
    another (a copy back, then cudaStreamSynchronize) are one wait."""
    spans = closed(union(waits.ts, waits.end, sorted_=True), WAIT_PAUSE_NS)
    if not len(spans):
        return np.zeros(len(idle), np.int64)
    row = np.searchsorted(spans.start, idle.start, side="right") - 1
    at = np.maximum(row, 0)
    held = (row >= 0) & (spans.end[at] >= idle.start)
    return np.where(held, spans.end[at] - spans.start[at], 0)


def _charge_syncs(ns: NDArray[np.int64], waited: Times) -> None:
    """Charge a wait with as much of the gap after it as the launches that follow would have come
    earlier without it."""
    launch, sync = CAUSES.index("launch-bound"), CAUSES.index("synchronisation")
    moved = np.minimum(ns[:, launch], waited)
    ns[:, launch] -= moved
    ns[:, sync] += moved


MAX_PLACES = 5
NO_CALL = "no operator or call"
_SYNC = CAUSES.index("synchronisation")


class Moments:
    """For each gap of a device the moment that tells most of its largest cause."""

    def __init__(self, trace: Trace, links: Links, gaps: IdleGaps) -> None:
        self.trace, self.gaps, self._links = trace, gaps, links
        self.dominant = gaps.dominant  # found once: it looks at every gap
        self._places = user_places(trace, links)
        self._waits = sync_spans(trace, links)
        lane, time = self._moments()
        self.place, self.host = self._where(lane, time), self._host(lane, time)

    def told(self, cause: int) -> tuple[tuple[Place, ...], str]:
        """Return the user's functions by idle time of that cause, and what the host was in for most
        of it."""
        rows = np.flatnonzero(self.gaps.ns[:, cause] > 0)
        place, host = self.place[rows], self.host[rows]
        aside = np.flatnonzero(self.dominant[rows] != cause)
        if len(aside):  # a lesser part of its gap: the gap's own moment tells of another cause
            lane, time = self._inside(cause, rows[aside])
            known = time >= 0
            place[aside] = np.where(known, self._where(lane, time), -1)
            host[aside] = np.where(known, self._host(lane, time), -1)
        ns = self.gaps.ns[rows, cause]
        return self._places_of(place, ns), self._most(host, ns)

    def gap(self, row: int, steps: Steps) -> Gap:
        gaps, names = self.gaps, self.trace.device.name
        before, after = int(gaps.previous_op[row]), int(gaps.next_op[row])
        code = int(self.place[row])
        return Gap(
            device=gaps.device,
            start_ns=int(gaps.start[row]),
            dur_ns=int(gaps.dur[row]),
            cause=CAUSES[int(self.dominant[row])],
            before=self.trace.text(int(names[before])) if before >= 0 else "",
            after=self.trace.text(int(names[after])) if after >= 0 else "",
            host=self._said(int(self.host[row])),
            place=None if code == -1 else place_of(self._places.text(code)),
            step=steps.at(int(gaps.start[row])),
        )

    def _moments(self) -> tuple[Rows, Times]:
        """The wait's own start for a synchronisation, the request for what had been queued, else
        the middle of the part of the gap before the request."""
        gaps = self.gaps
        asked = np.where(gaps.launched >= 0, np.clip(gaps.launched, gaps.start, gaps.end), gaps.end)
        queued = (gaps.launched >= 0) & (asked == gaps.start)
        time = np.where(queued, gaps.launched, (gaps.start + asked) // 2)
        waited = (gaps.sync >= 0) & (self.dominant == _SYNC)
        return self._at_waits(waited, gaps.sync, gaps.lane, time)

    def _at_waits(
        self,
        waited: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
        row: Rows,
        lane: Rows,
        time: Times,
    ) -> tuple[Rows, Times]:
        """Return the given moments; for waits, the start of the wait instead."""
        if not len(self._waits):
            return lane, time
        at = np.maximum(row, 0)
        return (
            np.where(waited, self._waits.lane[at], lane),
            np.where(waited, self._waits.ts[at], time),
        )

    def _inside(self, cause: int, rows: Rows) -> tuple[Rows, Times]:
        """Return when the host first was in that cause within each gap; -1 where that is not
        known."""
        gaps = self.gaps
        lane, start = gaps.lane[rows], gaps.start[rows]
        time = np.full(len(rows), -1, np.int64)
        name = CAUSES[cause]
        for one in np.unique(lane[lane >= 0]).tolist():
            spans = gaps.hosts.of(one).spans.get(name)
            mine = np.flatnonzero(lane == one)
            if spans is None or not len(spans):
                continue
            at = np.searchsorted(spans.end, start[mine], side="right")
            held = at < len(spans)
            begin = np.maximum(spans.start[np.minimum(at, len(spans) - 1)], start[mine])
            time[mine] = np.where(held & (begin < gaps.end[rows[mine]]), begin, -1)
        if name == "between kernels":
            time = gaps.launched[rows]
        if cause == _SYNC:
            return self._at_waits(gaps.sync[rows] >= 0, gaps.sync[rows], lane, time)
        return lane, time

    def _where(self, lane: Rows, time: Times) -> Rows:
        """Return the user's function; where the thread has no Python (the backward's), the one of
        the main thread."""
        main = self._links.main_lane
        place = self._places.at(lane, time)
        lost = np.flatnonzero((place == -1) & (lane != main))
        place[lost] = self._places.at(np.full(len(lost), main), time[lost])
        return place

    def _host(self, lane: Rows, time: Times) -> Rows:
        """Return the code of what the host was in: a call, else an operator, else a named span."""
        order = np.argsort(time, kind="stable")
        nothing = np.zeros(len(time), np.int64)
        moments = Events(
            kind=nothing.astype(np.uint8),
            ts=time[order],
            dur=nothing,
            name=nothing.astype(np.int32),
            lane=lane[order].astype(np.int32),
        )
        names = np.full(len(time), -1, np.int64)
        for table in (self._spans(), self.trace.ops, self.trace.calls):
            if len(table):
                above = self._links.op_parent if table is self.trace.ops else nested(table)
                row = enclosing(moments, table, above)
                known = row >= 0
                names[order[known]] = table.name[row[known]]
        return names

    def _spans(self) -> Events:
        """Return the named spans that say something; the number of a step says nothing."""
        spans = self.trace.annotations
        marks = self.trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
        return spans.take(~marks)

    def _places_of(self, place: Rows, ns: Times) -> tuple[Place, ...]:
        codes, totals = _summed(place, ns)
        found = []
        for i in np.argsort(-totals, kind="stable")[: MAX_PLACES + 1].tolist():
            told = place_of(self._places.text(int(codes[i]))) if codes[i] != -1 else None
            if told is not None:
                found.append(msgspec.structs.replace(told, ns=int(totals[i])))
        return tuple(found[:MAX_PLACES])

    def _most(self, host: Rows, ns: Times) -> str:
        codes, totals = _summed(host, ns)
        return self._said(int(codes[totals.argmax()])) if len(codes) else ""

    def _said(self, code: int) -> str:
        return self.trace.text(code) if code >= 0 else NO_CALL


def _summed(codes: Rows, ns: Times) -> tuple[Rows, Times]:
    found, back = np.unique(codes, return_inverse=True)
    totals = np.zeros(len(found), np.int64)
    np.add.at(totals, back, ns)
    return found, totals


MAX_GAPS = 1000


def idle(trace: Trace, links: Links, found: Sequence[IdleGaps], steps: Steps, trust: Trust) -> Idle:
    """Return the idle time of all devices of a trace."""
    if trust.confidence == "unreliable" or not found:
        why = trust.why or "the trace holds no device work"
        codes = trust.codes or ("no-device-work",)
        return Idle(trust=Trust(confidence="unreliable", why=why, codes=codes))
    moments = [Moments(trace, links, gaps) for gaps in found]
    total = sum(int(gaps.ns.sum()) for gaps in found)
    causes = [_cause(i, found, moments, total) for i in range(len(CAUSES))]
    return Idle(
        total_ns=total,
        causes=tuple(sorted((c for c in causes if c.ns), key=lambda c: -c.ns)),
        top=_top(found, moments, steps),
        gaps=sum(len(gaps.start) for gaps in found),
        histogram=_histogram(np.concatenate([gaps.dur for gaps in found])),
        trust=trust,
    )


def all_gaps(trace: Trace, links: Links, found: Sequence[IdleGaps], steps: Steps) -> Iterator[Gap]:
    """Return every gap as a record, in order of time, for the annotated trace."""
    for device_gaps in found:
        moments = Moments(trace, links, device_gaps)
        for row in range(len(device_gaps.start)):
            yield moments.gap(row, steps)


def _cause(
    index: int, found: Sequence[IdleGaps], moments: Sequence[Moments], total: int
) -> IdleCause:
    cause: Cause = CAUSES[index]
    ns = sum(int(gaps.ns[:, index].sum()) for gaps in found)
    lead = max(moments, key=lambda moment: int(moment.gaps.ns[:, index].sum()))
    places, says = lead.told(index)
    return IdleCause(
        cause=cause,
        ns=ns,
        share=ns / total if total else 0.0,
        gaps=sum(int((moment.dominant == index).sum()) for moment in moments),
        places=places,
        says=says,
    )


def _top(found: Sequence[IdleGaps], moments: Sequence[Moments], steps: Steps) -> tuple[Gap, ...]:
    picked = []
    for device_gaps, moment in zip(found, moments, strict=True):
        rows = np.argsort(-device_gaps.dur, kind="stable")[:MAX_GAPS]
        picked += [moment.gap(int(row), steps) for row in rows]
    return tuple(sorted(picked, key=lambda gap: -gap.dur_ns)[:MAX_GAPS])


def _histogram(dur: Times) -> tuple[tuple[int, int, int], ...]:
    """Count the gaps by power of ten, from a microsecond to the longest."""
    bounds: NDArray[np.int64] = 10 ** np.arange(3, 20, dtype=np.int64)[:16]
    bucket = np.searchsorted(bounds, dur, side="left")
    return tuple(
        (
            int(bounds[min(i, len(bounds) - 1)]),
            int((bucket == i).sum()),
            int(dur[bucket == i].sum()),
        )
        for i in np.unique(bucket).tolist()
    )

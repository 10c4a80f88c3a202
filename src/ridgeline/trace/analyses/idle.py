"""Finds out why the device was idle: every idle nanosecond gets one cause, and the user's line
where known.

A gap [a, b) ends when an operation starts. The call that launched this operation divides the gap.
Before the call, the cause is what the host did meanwhile (host_states); after it, the work was on
its way to the device. If the host was waiting for the device when the gap began, the launches after
the wait would have come earlier without it: as much of their time as the wait was long counts as
synchronisation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.records.facts import Trust
from ridgeline.records.trace import Cause, Gap, Idle, IdleCause, Place, Window
from ridgeline.trace.analyses.busy import busy_spans
from ridgeline.trace.columns import DeviceOps, Events
from ridgeline.trace.host_states import ORDER, HostStates, states_of, sync_spans
from ridgeline.trace.intervals import Spans, Times, closed, covered, gaps, merge, subtract, union
from ridgeline.trace.links import Links, Rows, at_rows, enclosing, nested, sums_by
from ridgeline.trace.places import user_places
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.window import Steps

CAUSES: tuple[Cause, ...] = get_args(Cause)
MAX_LAUNCH_LATENCY_NS = 50_000
"""From call to kernel a launch takes 3 to 20 µs. The time beyond this limit is not due to the
launch."""
MAX_PAUSE_IN_WAIT_NS = 10_000
"""Two waits with a shorter pause between them are one wait: a copy to the host, and the
synchronisation after it."""
MAX_UNLINKED_GAP_NS = 10_000
"""A gap up to this length before an operation without a launch record is a pause of the device
between two kernels."""


class LaunchingThreads:
    """The host states of each thread that launches device work: its own states and, while it did
    nothing, those of the other launching threads."""

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
    """Every gap of one device. `ns` has a row for each gap and a column for each of CAUSES."""

    device: int
    start: Times
    end: Times
    ns: NDArray[np.int64]
    next_op: Rows
    """The device operation that ended the gap (row in trace.device); -1 at the window's end."""
    previous_op: Rows
    lane: Rows
    """The host thread that launched the next operation."""
    sync: Rows
    """The wait in which the host was when the gap began (row in `sync_spans`); -1: none."""
    launched: Times
    """When the next operation's launching call began; -1 where unknown."""
    threads: LaunchingThreads

    @property
    def dur(self) -> Times:
        return self.end - self.start

    @property
    def dominant(self) -> Rows:
        """Return the largest cause of each gap, as an index into CAUSES."""
        largest: Rows = np.argmax(self.ns, axis=1)
        return largest


@once_per_trace
def idle_gaps(trace: Trace, links: Links, window: Window) -> tuple[IdleGaps, ...]:
    """Return the gaps of each device, with their causes."""
    result = []
    threads = LaunchingThreads(trace, links)
    for device in np.unique(trace.device.device):
        rows = np.flatnonzero(trace.device.device == device)
        result.append(_device_gaps(trace, links, window, int(device), rows, threads))
    return tuple(result)


def _device_gaps(
    trace: Trace, links: Links, window: Window, device: int, rows: Rows, threads: LaunchingThreads
) -> IdleGaps:
    ops = trace.device.take(rows)
    idle = gaps(busy_spans(ops, window), window.start_ns, window.end_ns)
    after, before = _neighbours(ops, idle)
    next_op = np.where(after >= 0, rows[np.maximum(after, 0)], -1)
    call = np.where(next_op >= 0, links.device_call[np.maximum(next_op, 0)], -1)
    launched = np.where(call >= 0, at_rows(trace.calls.ts, call), -1)
    lane = np.where(next_op >= 0, links.launch_lane[np.maximum(next_op, 0)], -1)
    lane = np.where(lane >= 0, lane, links.main_lane).astype(np.int64)
    requested = np.where(call >= 0, np.clip(launched, idle.start, idle.end), idle.end)
    ns = np.zeros((len(idle), len(CAUSES)), np.int64)
    for thread in np.unique(lane):
        of_thread = np.flatnonzero(lane == thread)
        _add_host_causes(
            ns, of_thread, threads.of(int(thread)) if thread >= 0 else None, idle.start, requested
        )
    waits = sync_spans(trace, links)
    sync = _open_waits(waits, idle)
    _add_launch_causes(ns, idle, requested, call >= 0)
    _move_launches_to_syncs(ns, _wait_lengths(waits, idle))
    short = (call < 0) & (next_op >= 0) & (idle.end - idle.start <= MAX_UNLINKED_GAP_NS)
    ns[short] = 0
    ns[short, CAUSES.index("between kernels")] = (idle.end - idle.start)[short]
    if not threads.any:
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
        threads=threads,
    )


def _neighbours(ops: DeviceOps, idle: Spans) -> tuple[Rows, Rows]:
    """Return the operation that starts at the end of each gap, and one that ended at its start."""
    after = np.searchsorted(ops.ts, idle.end, side="left")
    after = np.where(after < len(ops), after, -1)
    by_end = np.argsort(ops.end, kind="stable")
    last = np.searchsorted(ops.end[by_end], idle.start, side="right") - 1
    return after, np.where(last >= 0, by_end[np.maximum(last, 0)], -1)


def _add_host_causes(
    ns: NDArray[np.int64], rows: Rows, states: HostStates | None, start: Times, requested: Times
) -> None:
    """Add the time from the start of each gap to the request for the work, by what the host did."""
    low, high = start[rows], requested[rows]
    rest = high - low
    for cause in ORDER if states is not None else ():
        assert states is not None
        part = covered(states.spans[cause], low, high)
        ns[rows, CAUSES.index(cause)] += part
        rest = rest - part
    ns[rows, CAUSES.index("other host")] += rest


def _add_launch_causes(
    ns: NDArray[np.int64], idle: Spans, requested: Times, linked: NDArray[np.bool_]
) -> None:
    """Add the time from the request to the start of the work: the latency of the launch and, beyond
    that, a pause of the device between kernels."""
    left = np.where(linked, idle.end - requested, 0)
    in_gap = requested > idle.start
    latency = np.where(in_gap, np.minimum(left, MAX_LAUNCH_LATENCY_NS), 0)
    ns[:, CAUSES.index("launch-bound")] += latency
    ns[:, CAUSES.index("between kernels")] += left - latency


def _open_waits(waits: Events, idle: Spans) -> Rows:
    """Return for each gap the wait in which the host was when the gap began; of several, the one
    that began last; -1 for none."""
    if not len(waits) or not len(idle):
        return np.full(len(idle), -1, np.int64)
    row = np.searchsorted(waits.ts, idle.start, side="right") - 1
    reach = np.maximum.accumulate(waits.end)
    is_open = (row >= 0) & (reach[np.maximum(row, 0)] >= idle.start)
    # of nested or parallel waits: the latest that still ran
    while (is_over := is_open & (waits.end[np.maximum(row, 0)] < idle.start)).any():
        row = np.where(is_over, row - 1, row)
        is_open &= row >= 0
    return np.where(is_open, row, -1)


def _wait_lengths(waits: Events, idle: Spans) -> Times:
    """Return the length of the wait in which the host was when each gap began. Calls that follow
    one another (a copy to the host, then cudaStreamSynchronize) are one wait."""
    spans = closed(union(waits.ts, waits.end, sorted_=True), MAX_PAUSE_IN_WAIT_NS)
    if not len(spans):
        return np.zeros(len(idle), np.int64)
    row = np.searchsorted(spans.start, idle.start, side="right") - 1
    at = np.maximum(row, 0)
    is_open = (row >= 0) & (spans.end[at] >= idle.start)
    return np.where(is_open, spans.end[at] - spans.start[at], 0)


def _move_launches_to_syncs(ns: NDArray[np.int64], wait_ns: Times) -> None:
    """Count launch time after a wait as synchronisation, up to the length of the wait: without the
    wait, these launches would have come that much earlier."""
    launch, sync = CAUSES.index("launch-bound"), CAUSES.index("synchronisation")
    moved = np.minimum(ns[:, launch], wait_ns)
    ns[:, launch] -= moved
    ns[:, sync] += moved


MAX_PLACES = 5
NO_CALL = "no operator or call"
_SYNC = CAUSES.index("synchronisation")


class GapMoments:
    """For each gap of a device, the moment at which the host shows its largest cause best, and what
    the host did at that moment."""

    def __init__(self, trace: Trace, links: Links, gaps: IdleGaps) -> None:
        self.trace, self.gaps, self._links = trace, gaps, links
        self.dominant = gaps.dominant  # computed once, because it looks at every gap
        self._places = user_places(trace, links)
        self._waits = sync_spans(trace, links)
        lane, time = self._moments()
        self.place, self.host = self._places.at_or_main(lane, time), self._host_events(lane, time)

    def explain(self, cause: int) -> tuple[tuple[Place, ...], str]:
        """Return the user's functions with the most idle time of this cause, and the event in which
        the host was for most of that time."""
        rows = np.flatnonzero(self.gaps.ns[:, cause] > 0)
        place, host = self.place[rows], self.host[rows]
        lesser = np.flatnonzero(self.dominant[rows] != cause)
        if len(lesser):  # gaps with another largest cause: their own moment shows that one
            lane, time = self._first_moments(cause, rows[lesser])
            known = time >= 0
            place[lesser] = np.where(known, self._places.at_or_main(lane, time), -1)
            host[lesser] = np.where(known, self._host_events(lane, time), -1)
        ns = self.gaps.ns[rows, cause]
        return self._places_of(place, ns), self._main_host_event(host, ns)

    def gap(self, row: int, steps: Steps) -> Gap:
        gaps, names = self.gaps, self.trace.device.name
        before, after = int(gaps.previous_op[row]), int(gaps.next_op[row])
        return Gap(
            device=gaps.device,
            start_ns=int(gaps.start[row]),
            dur_ns=int(gaps.dur[row]),
            cause=CAUSES[int(self.dominant[row])],
            before=self.trace.text(int(names[before])) if before >= 0 else "",
            after=self.trace.text(int(names[after])) if after >= 0 else "",
            host=self._host_text(int(self.host[row])),
            place=self._places.place(int(self.place[row])),
            step=steps.at(int(gaps.start[row])),
        )

    def _moments(self) -> tuple[Rows, Times]:
        """Return a thread and a time for each gap. For a synchronisation, the time is the start of
        the wait; for work that was already queued, its request; else the middle of the part of the
        gap before the request."""
        gaps = self.gaps
        requested = np.where(
            gaps.launched >= 0, np.clip(gaps.launched, gaps.start, gaps.end), gaps.end
        )
        queued = (gaps.launched >= 0) & (requested == gaps.start)
        time = np.where(queued, gaps.launched, (gaps.start + requested) // 2)
        waited = (gaps.sync >= 0) & (self.dominant == _SYNC)
        return self._at_waits(waited, gaps.sync, gaps.lane, time)

    def _at_waits(
        self,
        waited: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
        row: Rows,
        lane: Rows,
        time: Times,
    ) -> tuple[Rows, Times]:
        """Return the given threads and times, with the start of the wait where `waited`."""
        if not len(self._waits):
            return lane, time
        at = np.maximum(row, 0)
        return (
            np.where(waited, self._waits.lane[at], lane),
            np.where(waited, self._waits.ts[at], time),
        )

    def _first_moments(self, cause: int, rows: Rows) -> tuple[Rows, Times]:
        """Return when this cause first applied within each gap; -1 where that is not known."""
        gaps = self.gaps
        lane, start = gaps.lane[rows], gaps.start[rows]
        time = np.full(len(rows), -1, np.int64)
        name = CAUSES[cause]
        for thread in np.unique(lane[lane >= 0]).tolist():
            spans = gaps.threads.of(thread).spans.get(name)
            of_thread = np.flatnonzero(lane == thread)
            if spans is None or not len(spans):
                continue
            at = np.searchsorted(spans.end, start[of_thread], side="right")
            is_in_spans = at < len(spans)
            begin = np.maximum(spans.start[np.minimum(at, len(spans) - 1)], start[of_thread])
            time[of_thread] = np.where(is_in_spans & (begin < gaps.end[rows[of_thread]]), begin, -1)
        if name == "between kernels":
            time = gaps.launched[rows]
        if cause == _SYNC:
            return self._at_waits(gaps.sync[rows] >= 0, gaps.sync[rows], lane, time)
        return lane, time

    def _host_events(self, lane: Rows, time: Times) -> Rows:
        """Return the name code of the host event at each moment: a call, else an operator, else a
        named span."""
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
        """Return the named spans without the step marks, whose names say nothing about a cause."""
        spans = self.trace.annotations
        marks = self.trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
        return spans.take(~marks)

    def _places_of(self, place: Rows, ns: Times) -> tuple[Place, ...]:
        codes, totals = _sum_by_code(place, ns)
        places = []
        for i in np.argsort(-totals, kind="stable")[: MAX_PLACES + 1].tolist():
            function = self._places.place(int(codes[i]))
            if function is not None:
                places.append(msgspec.structs.replace(function, ns=int(totals[i])))
        return tuple(places[:MAX_PLACES])

    def _main_host_event(self, host: Rows, ns: Times) -> str:
        codes, totals = _sum_by_code(host, ns)
        return self._host_text(int(codes[totals.argmax()])) if len(codes) else ""

    def _host_text(self, code: int) -> str:
        return self.trace.text(code) if code >= 0 else NO_CALL


def _sum_by_code(codes: Rows, ns: Times) -> tuple[Rows, Times]:
    distinct_codes, code_of_row = np.unique(codes, return_inverse=True)
    totals = sums_by(code_of_row, ns, len(distinct_codes))
    return distinct_codes, totals


MAX_GAPS = 1000


def idle(
    trace: Trace, links: Links, devices: Sequence[IdleGaps], steps: Steps, trust: Trust
) -> Idle:
    """Return the idle time of all devices of a trace."""
    if trust.confidence == "unreliable" or not devices:
        why = trust.why or "the trace holds no device work"
        codes = trust.codes or ("no-device-work",)
        return Idle(trust=Trust(confidence="unreliable", why=why, codes=codes))
    moments = [GapMoments(trace, links, gaps) for gaps in devices]
    total = sum(int(gaps.ns.sum()) for gaps in devices)
    causes = [_cause(i, devices, moments, total) for i in range(len(CAUSES))]
    return Idle(
        total_ns=total,
        causes=tuple(sorted((c for c in causes if c.ns), key=lambda c: -c.ns)),
        top=_longest(devices, moments, steps),
        gaps=sum(len(gaps.start) for gaps in devices),
        histogram=_histogram(np.concatenate([gaps.dur for gaps in devices])),
        trust=trust,
    )


def all_gaps(
    trace: Trace, links: Links, devices: Sequence[IdleGaps], steps: Steps
) -> Iterator[Gap]:
    """Return every gap as a record, in order of time, for the annotated trace."""
    for device_gaps in devices:
        moments = GapMoments(trace, links, device_gaps)
        for row in range(len(device_gaps.start)):
            yield moments.gap(row, steps)


def _cause(
    index: int, devices: Sequence[IdleGaps], moments: Sequence[GapMoments], total: int
) -> IdleCause:
    cause: Cause = CAUSES[index]
    ns = sum(int(gaps.ns[:, index].sum()) for gaps in devices)
    lead = max(moments, key=lambda moment: int(moment.gaps.ns[:, index].sum()))
    places, host_event = lead.explain(index)
    return IdleCause(
        cause=cause,
        ns=ns,
        share=ns / total if total else 0.0,
        gaps=sum(int((moment.dominant == index).sum()) for moment in moments),
        places=places,
        says=host_event,
    )


def _longest(
    devices: Sequence[IdleGaps], moments: Sequence[GapMoments], steps: Steps
) -> tuple[Gap, ...]:
    longest = []
    for device_gaps, moment in zip(devices, moments, strict=True):
        rows = np.argsort(-device_gaps.dur, kind="stable")[:MAX_GAPS]
        longest += [moment.gap(int(row), steps) for row in rows]
    return tuple(sorted(longest, key=lambda gap: -gap.dur_ns)[:MAX_GAPS])


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

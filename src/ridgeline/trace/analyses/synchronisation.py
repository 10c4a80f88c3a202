"""The lines at which the host waits for the device: how often in a step, and for how long.

The calls of one operator are one wait: `.item()` copies a number and then synchronises. Waits of a
profiler, torch's or ours, are not the program's. They lie outside the marked steps, or a function
of the profiler called them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.run_summary import SyncPoint
from ridgeline.records.sites import Replay, SyncSite
from ridgeline.records.trace import Cause, Place, Window
from ridgeline.trace.analyses.idle import CAUSES, IdleGaps, idle_gaps
from ridgeline.trace.columns import Calls, Events, Kind
from ridgeline.trace.host_states import (
    BLOCKING_OPS,
    COPY_OPS,
    driving_lanes,
    is_copy_call,
    is_sync_call,
    is_waiting_call,
)
from ridgeline.trace.intervals import covered, intersect, union
from ridgeline.trace.links import Links, Rows, enclosing
from ridgeline.trace.places import CallPaths, rows_above, user_places
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import started, step_spans

MAX_SYNC_POINTS = 20
_KNOWN_WAITING_OPS = (
    BLOCKING_OPS | COPY_OPS | {"aten::unique_dim", "aten::bincount", "aten::pin_memory"}
)
"""Operators by which users know a wait. A wait is named after the outermost of these around it."""
_PAGEABLE = re.compile("Pageable", re.IGNORECASE)
_TO_PAGEABLE = re.compile("Device -> Pageable", re.IGNORECASE)
"""A copy to pageable memory of the host returns when the copy is done, also where the name of the
call says Async."""
_WRAPPERS = re.compile(r"^<built-in|^torch[/\\]cuda[/\\]|[/\\]torch[/\\]cuda[/\\]")
"""Functions through which a program or a profiler asks for a wait: their caller counts."""
_PROFILERS = re.compile(
    r"(^|[/\\])ridgeline[/\\]|(^|[/\\])torch[/\\](profiler[/\\]|autograd[/\\]profiler)"
)


class Waits(Struct, frozen=True):
    calls: Calls
    row: Rows
    """The row of each call in `trace.calls`."""
    op: Rows
    """The operator after which each wait is named; -1: there is none around the call."""


def sync_points(trace: Trace, links: Links, window: Window) -> tuple[SyncPoint, ...]:
    """Return the costliest points first; () where the trace has no device."""
    waits = program_waits(trace, links, window)
    if not len(waits.calls):
        return ()
    steps = max(window.steps, 1)
    seen: dict[tuple[str, str], tuple[set[int], list[int]]] = {}
    for row, where in enumerate(_places(trace, links, waits.calls)):
        place = "" if where is None else f"{where.file}:{where.line}"
        op = int(waits.op[row])
        name = trace.ops.name[op] if op >= 0 else waits.calls.name[row]
        instances, spent = seen.setdefault((place, trace.text(int(name))), (set(), []))
        instances.add(op if op >= 0 else -1 - row)
        spent.append(int(waits.calls.dur[row]))
    points = [
        SyncPoint(
            place=place,
            call=call,
            per_step=len(instances) / steps,
            ms_per_step=sum(spent) / 1e6 / steps,
        )
        for (place, call), (instances, spent) in seen.items()
    ]
    return tuple(sorted(points, key=lambda point: -point.ms_per_step)[:MAX_SYNC_POINTS])


def program_waits(trace: Trace, links: Links, window: Window, *, staged: bool = False) -> Waits:
    """Return the calls in which the program waits for the device. With `staged`, also return the
    copies from memory that is not pinned, which hold the host until the driver has read it."""
    calls = trace.calls
    copies = _unpinned_copies(trace, links, _PAGEABLE)
    blocks = trace.names_where(calls.name, is_sync_call) | _unpinned_copies(
        trace, links, _TO_PAGEABLE
    )
    in_steps = (blocks | copies) & started(calls, step_spans(trace, window))
    # threads that pin batches or watch collectives do not hold the program up
    in_steps &= np.isin(calls.lane, driving_lanes(trace, links))
    waiting, blocks = calls.take(in_steps), blocks[in_steps]
    op = _named_after(trace, links, enclosing(waiting, trace.ops, links.op_parent))
    # a copy to the device holds the host while the memory is read, but does not wait for the device
    counts = (blocks | np.isin(op, op[blocks & (op >= 0)]) | staged) & ~asked_by_profiler(
        trace, links, waiting
    )
    return Waits(waiting.take(counts), np.flatnonzero(in_steps)[counts], op[counts])


def _unpinned_copies(trace: Trace, links: Links, which: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return which calls make a copy of the given kind, whose host memory is not pinned."""
    device = trace.device
    copies = (device.kind == Kind.MEMCPY) & trace.names_where(
        device.name, lambda name: which.search(name) is not None
    )
    rows = links.device_call[copies]
    waits = np.zeros(len(trace.calls), bool)
    waits[rows[rows >= 0]] = True
    return np.asarray(waits & trace.names_where(trace.calls.name, is_copy_call), bool)


def asked_by_profiler(trace: Trace, links: Links, calls: Calls) -> NDArray[np.bool_]:
    """Return which calls a profiler asked for, seen at the innermost function that is no mere
    wrapper."""
    frames = trace.frames
    if not len(frames):
        return np.zeros(len(calls), bool)
    above = links.frame_parent
    is_wrapper = trace.names_where(frames.name, lambda name: _WRAPPERS.search(name) is not None)
    is_profiler = trace.names_where(frames.name, lambda name: _PROFILERS.search(name) is not None)
    frame = enclosing(calls, frames, above)
    while (climbs := (frame >= 0) & is_wrapper[np.maximum(frame, 0)]).any():
        frame = np.where(climbs, above[np.maximum(frame, 0)], frame)
    return np.asarray((frame >= 0) & is_profiler[np.maximum(frame, 0)], bool)


def _named_after(trace: Trace, links: Links, op: Rows) -> Rows:
    """Return the outermost of the known waiting operators around each call, or `op`, the innermost
    operator, if none of them is known."""
    if not len(trace.ops):
        return op
    is_known = trace.names_where(trace.ops.name, _KNOWN_WAITING_OPS.__contains__)
    named, current = op.copy(), op
    while (inside := current >= 0).any():
        named = np.where(inside & is_known[np.maximum(current, 0)], current, named)
        current = np.where(inside, links.op_parent[np.maximum(current, 0)], -1)
    return named


def _places(trace: Trace, links: Links, calls: Calls) -> list[Place | None]:
    """Return the user's function of each call; on a thread without Python, the function in which
    the main thread was."""
    places = user_places(trace, links)
    return [
        places.place(code)
        for code in places.at_or_main(calls.lane.astype(np.int64), calls.ts).tolist()
    ]


MAX_SYNC_SITES = 60
CHARGED: tuple[Cause, ...] = ("synchronisation", "launch-bound", "transfer", "other host")
"""The causes of idle time that would not occur if the host ran further ahead of the device."""
_PRINTING = re.compile(r"_tensor_str\.py:|_tensor\.py:(__repr__|__format__)$")
"""The functions that make the text of a tensor. Without the print, all of their waits vanish."""
_TO_DEVICE = re.compile(r"HtoD|HostToDevice|Host -> Device", re.IGNORECASE)
Direction = Literal["", "to device", "to host"]


class _WaitUnit(Struct):
    """All waits of one operator, of one call without an operator, or of one printed tensor."""

    place: Place | None
    ops: tuple[str, ...]
    call: str
    via: tuple[str, ...]
    lane: int
    start: int
    end: int
    waits: int = 0
    held: int = 0
    bytes: int = 0
    sent: bool = False
    returned: bool = False
    work: int = 0
    idle: float = 0.0
    site: int = -1

    @property
    def direction(self) -> Direction:
        if self.sent == self.returned:
            return ""
        return "to device" if self.sent else "to host"

    @property
    def stays(self) -> bool:
        """Whether the unit remains without its wait, as a copy to the device does."""
        return self.direction != "to host" and not COPY_OPS.isdisjoint(self.ops)

    @property
    def key(self) -> tuple[object, ...]:
        return self.place, self.ops, self.via, self.direction, "" if self.ops else self.call


class SyncCosts(Struct, frozen=True):
    sites: tuple[SyncSite, ...] = ()
    """Sorted by idle time, then by host time, the costliest first."""
    replay: Replay | None = None


def sync_costs(trace: Trace, links: Links, window: Window) -> SyncCosts:
    """Return the costs of all waits of the program; empty where the trace has no device."""
    waits = program_waits(trace, links, window, staged=True)
    if not len(waits.row):
        return SyncCosts()
    units, unit_of = _units(trace, links, waits)
    _add_work(trace, links, units)
    remaining = _remaining_waits(trace, links, waits, window)
    for gaps in idle_gaps(trace, links, window):
        _charge_idle_time(trace, window, gaps, units, trace.calls.end[remaining].tolist())
    groups: dict[tuple[object, ...], list[_WaitUnit]] = {}
    for unit in units:
        groups.setdefault(unit.key, []).append(unit)
    steps = max(window.steps, 1)
    sites = [(_site(group, steps), group) for group in groups.values()]
    sites.sort(key=lambda site: (-site[0].idle_ns, -site[0].host_ns))
    sites = sites[:MAX_SYNC_SITES]
    for index, (_, group) in enumerate(sites):
        for unit in group:
            unit.site = index
    requests = [WaitRequest(unit.site, unit.lane, unit.start, unit.end) for unit in units]
    blocked = {row: unit.site for row, unit in unit_of.items()}
    return SyncCosts(
        tuple(site for site, _ in sites),
        replay_of(
            trace, links, window, requests, {**dict.fromkeys(remaining.tolist(), -2), **blocked},
            tuple(group[0].stays for _, group in sites),
        ),
    )  # fmt: skip


def _site(group: Sequence[_WaitUnit], steps: int) -> SyncSite:
    first = group[0]
    return SyncSite(
        ops=first.ops,
        call=first.call,
        place=first.place,
        via=first.via,
        direction=first.direction,
        times=len(group) / steps,
        waits=sum(unit.waits for unit in group) / steps,
        bytes=sum(unit.bytes for unit in group) / steps,
        host_ns=sum(unit.held for unit in group) / steps,
        device_ns=sum(unit.work for unit in group) / steps,
        idle_ns=sum(unit.idle for unit in group) / steps,
    )


def _units(
    trace: Trace, links: Links, waits: Waits
) -> tuple[list[_WaitUnit], dict[int, _WaitUnit]]:
    """Return the units in order of their ends, and the unit of each row of `trace.calls` that
    waits."""
    paths = CallPaths(trace, links).of(waits.calls)
    places = _places(trace, links, waits.calls)
    copied, unit_of = _copy_calls(trace, links), {}
    named: dict[int, tuple[str, ...]] = {}
    units_by_key: dict[tuple[str, int], _WaitUnit] = {}
    for index, row in enumerate(waits.row.tolist()):
        op, (via, frames) = int(waits.op[index]), paths[index]
        printing = next((k for k, name in enumerate(via) if _PRINTING.search(name)), -1)
        start, end = int(waits.calls.ts[index]), int(waits.calls.end[index])
        ops: tuple[str, ...] = ()
        key = ("call", row)
        if printing >= 0:
            key, via = ("frame", frames[printing]), via[: printing + 1]
            table: Events = trace.frames
        elif op >= 0:
            key, table = ("op", op), trace.ops
            ops = named.setdefault(op, _ops(trace, links, int(links.call_op[row])))
        if key[0] != "call":
            start, end = int(table.ts[key[1]]), int(table.end[key[1]])
        name = trace.text(int(waits.calls.name[index]))
        lane = int(waits.calls.lane[index])
        unit = units_by_key.setdefault(
            key, _WaitUnit(places[index], ops, name, via, lane, start, end)
        )
        unit_of[row] = unit
        unit.held += int(waits.calls.dur[index])
        if is_waiting_call(name) or row not in copied:
            unit.waits += 1
    for unit in units_by_key.values():
        unit.waits = max(unit.waits, 1)
    units = sorted(units_by_key.values(), key=lambda unit: unit.end)
    _add_copies(trace, units, copied)
    return units, unit_of


def _add_copies(
    trace: Trace, units: Sequence[_WaitUnit], copied: dict[int, tuple[bool, int]]
) -> None:
    """Add the copies that were made inside each unit: the call that waits may not be the call that
    copies."""
    calls = sorted(copied)
    call_starts = trace.calls.ts[calls] if calls else np.empty(0, np.int64)
    for unit in units:
        first, last = np.searchsorted(call_starts, [unit.start, unit.end])
        for row in calls[first:last]:
            if int(trace.calls.lane[row]) == unit.lane:
                to_device, size = copied[row]
                unit.bytes += size
                unit.sent |= to_device
                unit.returned |= not to_device


def _add_work(trace: Trace, links: Links, units: Sequence[_WaitUnit]) -> None:
    """Add the device work that was launched inside each unit."""
    if not len(trace.calls):
        return
    call = links.device_call
    requested = np.where(call >= 0, trace.calls.ts[np.maximum(call, 0)], -1)
    lanes = links.launch_lane
    for lane in {unit.lane for unit in units}:
        rows = np.flatnonzero((lanes == lane) & (requested >= 0))
        rows = rows[np.argsort(requested[rows], kind="stable")]
        total = np.append(0, np.cumsum(trace.device.dur[rows]))
        for unit in (unit for unit in units if unit.lane == lane):
            first, last = np.searchsorted(requested[rows], [unit.start, unit.end])
            unit.work = int(total[last] - total[first])


def _ops(trace: Trace, links: Links, row: int) -> tuple[str, ...]:
    return tuple(trace.text(int(trace.ops.name[op])) for op in rows_above(links, row))


def _copy_calls(trace: Trace, links: Links) -> dict[int, tuple[bool, int]]:
    """Return for each call that copies between host and device whether it copies to the device, and
    how many bytes."""
    device = trace.device
    copies: dict[int, tuple[bool, int]] = {}
    rows = np.flatnonzero((device.kind == Kind.MEMCPY) & (links.device_call >= 0))
    for row in rows.tolist():
        name = trace.text(int(device.name[row]))
        if "DtoD" not in name and "PtoP" not in name:
            size = max(int(device.bytes[row]), 0)
            copies[int(links.device_call[row])] = (_TO_DEVICE.search(name) is not None, size)
    return copies


def _remaining_waits(trace: Trace, links: Links, waits: Waits, window: Window) -> Rows:
    """Return the waiting calls that would remain: those of a profiler, and those between steps."""
    calls = trace.calls
    rows = np.flatnonzero(
        trace.names_where(calls.name, is_waiting_call)
        & np.isin(calls.lane, driving_lanes(trace, links))
    )
    rows = rows[~np.isin(rows, waits.row)]
    is_profiler = asked_by_profiler(trace, links, calls.take(rows))
    outside = ~started(calls.take(rows), step_spans(trace, window))
    return np.asarray(rows[is_profiler | outside], np.int64)


def _charge_idle_time(
    trace: Trace,
    window: Window,
    gaps: IdleGaps,
    units: Sequence[_WaitUnit],
    remaining: Sequence[int],
) -> None:
    """Add idle time to the units. Each wait gives a credit as long as the wait; the idle gaps that
    follow use it up until the next wait ends."""
    charged = gaps.ns[:, [CAUSES.index(cause) for cause in CHARGED]].sum(axis=1)
    charged = np.where(gaps.next_op >= 0, charged, 0)  # nothing comes after the last
    # idle time between two marked steps is the profiler's
    inside = covered(step_spans(trace, window), gaps.start, gaps.end)
    inside_share = inside / np.maximum(gaps.end - gaps.start, 1)
    lengths = _unit_lengths(units)
    moments = iter([*_wait_ends(units, remaining), (np.iinfo(np.int64).max, -1)])
    end, index = next(moments)
    credit, last = 0.0, -1
    for i in np.argsort(gaps.end, kind="stable").tolist():
        while end <= gaps.end[i]:
            credit, last = (0.0, -1) if index < 0 else (credit + lengths[index], index)
            end, index = next(moments)
        if last >= 0 and charged[i]:
            used = min(credit, float(charged[i]))
            credit -= used
            units[last].idle += used * float(inside_share[i])


def _wait_ends(units: Sequence[_WaitUnit], remaining: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the end of each wait in order of time, with the number of its unit; -1 for a wait that
    would remain."""
    ends = [(unit.end, i) for i, unit in enumerate(units)] + [(end, -1) for end in remaining]
    return iter(sorted(ends))


def _unit_lengths(units: Sequence[_WaitUnit]) -> NDArray[np.int64]:
    """Return the length of each unit without the part that lies in a unit before it: a print may
    contain the print of another tensor."""
    start = np.array([unit.start for unit in units], np.int64)
    end = np.array([unit.end for unit in units], np.int64)
    before: Rows = np.append(np.int64(start.min() if len(start) else 0), np.maximum.accumulate(end))
    whole = np.maximum(end - np.maximum(start, before[:-1]), 0)
    # the operator of a copy also allocates and reads the source: 7 of 9.5 ms on a V100
    limits = np.array(
        [unit.held if unit.stays else unit.end - unit.start for unit in units], np.int64
    )
    return np.minimum(whole, limits)


MAX_REPLAYED_EVENTS = 40_000
"""The replay is left out if there are more events. It goes through them twenty times in Python;
for this many, that takes half a second."""

Times = NDArray[np.int64]


class WaitRequest(Struct, frozen=True):
    """A span of the host that contains a wait: an operator, a call or the printing of a tensor."""

    site: int
    lane: int
    start: int
    end: int


def replay_of(
    trace: Trace,
    links: Links,
    window: Window,
    requests: Sequence[WaitRequest],
    blocked: Mapping[int, int],
    stays: tuple[bool, ...],
) -> Replay | None:
    """Return the events of the steps for a replay without some of the waits; None if there are too
    many. `blocked` has the site of each row of `trace.calls` that waits, -2 for waits that
    remain."""
    spans = step_spans(trace, window)
    call = links.device_call
    known = np.where(call >= 0, trace.calls.ts[np.maximum(call, 0)], -1)
    rows = np.flatnonzero((call >= 0) & (covered(spans, known, known + 1) > 0))
    waits = np.array(sorted(blocked), np.int64)
    waits = waits[covered(spans, trace.calls.ts[waits], trace.calls.ts[waits] + 1) > 0]
    if not len(rows) or len(rows) + len(waits) > MAX_REPLAYED_EVENTS:
        return None
    # a wait begins with its call, after a launch in the same call; the host goes on at its end
    begin = np.concatenate([known[rows], trace.calls.ts[waits]])
    until = np.concatenate([known[rows], trace.calls.end[waits]])
    is_wait = np.concatenate([np.zeros(len(rows), bool), np.ones(len(waits), bool)])
    order = np.lexsort((is_wait, begin))
    begin, until, is_wait = begin[order], until[order], is_wait[order]
    left = np.append(begin[:1], np.maximum.accumulate(until)[:-1])
    ordered = sorted(requests, key=lambda request: request.start)
    inside = union(
        np.array([request.start for request in ordered]),
        np.array([request.end for request in ordered]),
    )
    host_ns = covered(spans, np.minimum(left, begin), begin)
    requesting = covered(intersect(spans, inside), np.minimum(left, begin), begin)
    streams = np.unique(trace.device.stream[rows], return_inverse=True)[1]
    dur = np.concatenate([trace.device.dur[rows], np.full(len(waits), -1)])[order]
    stream = np.concatenate([streams, np.zeros(len(waits), np.int64)])[order]
    site = _sites_at(begin, ordered)
    wait_sites = np.array([blocked[int(row)] for row in waits], np.int64)
    site[is_wait] = np.concatenate([np.zeros(len(rows), np.int64), wait_sites])[order][is_wait]
    return Replay(
        steps=max(window.steps, 1),
        before_ns=tuple((host_ns - requesting).tolist()),
        asking_ns=tuple(requesting.tolist()),
        site=tuple(site.tolist()),
        dur_ns=tuple(dur.tolist()),
        stream=tuple(stream.tolist()),
        stays=stays,
    )


def _sites_at(moments: Times, requests: Sequence[WaitRequest]) -> Times:
    """Return for each moment the site of the wait around it; -1 where there is none."""
    if not requests:
        return np.full(len(moments), -1, np.int64)
    start = np.array([request.start for request in requests], np.int64)
    row = np.searchsorted(start, moments, side="right") - 1
    sites = np.full(len(moments), -1, np.int64)
    for i, index in enumerate(row.tolist()):
        if index >= 0 and moments[i] < requests[index].end:
            sites[i] = requests[index].site
    return sites

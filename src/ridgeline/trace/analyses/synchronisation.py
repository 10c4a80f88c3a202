"""Lines at which the host waits for the device: calls a step, and how long they hold it.

One operator's calls are one wait: `.item()` copies a number and then synchronises. Waits of the
profiler, and of what profiles here, are not the program's: those outside the marked steps, and
those asked for by a function of theirs.
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
_SAID = BLOCKING_OPS | COPY_OPS | {"aten::unique_dim", "aten::bincount", "aten::pin_memory"}
"""Operators people know the wait by; those around them inside a call are named after these."""
_UNPINNED = re.compile("Pageable", re.IGNORECASE)
_BACK = re.compile("Device -> Pageable", re.IGNORECASE)
"""Such a copy to the host returns when it is done, whatever the call's name says."""
_PASSED_OVER = re.compile(r"^<built-in|^torch[/\\]cuda[/\\]|[/\\]torch[/\\]cuda[/\\]")
"""The ways to ask for a wait, which anybody may call."""
_NOT_THE_PROGRAMS = re.compile(
    r"(^|[/\\])ridgeline[/\\]|(^|[/\\])torch[/\\](profiler[/\\]|autograd[/\\]profiler)"
)


class Waits(Struct, frozen=True):
    calls: Calls
    row: Rows
    """The row of each call in `trace.calls`."""
    op: Rows
    """The operator each is named after; -1: none around it."""


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
    """Calls in which the program waits for the device; `staged`: and all that copy memory which is
    not pinned to it, which hold the host until the driver has read it."""
    calls = trace.calls
    copies = _pageable(trace, links, _UNPINNED)
    sync = trace.names_where(calls.name, is_sync_call) | _pageable(trace, links, _BACK)
    here = (sync | copies) & started(calls, step_spans(trace, window))
    # a thread that pins batches or watches collectives waits beside the program
    here &= np.isin(calls.lane, driving_lanes(trace, links))
    found, sync = calls.take(here), sync[here]
    op = _named_after(trace, links, enclosing(found, trace.ops, links.op_parent))
    # a copy to the device holds the host while it is read; alone it is no wait for the device
    held = (sync | np.isin(op, op[sync & (op >= 0)]) | staged) & ~by_profiler(trace, links, found)
    return Waits(found.take(held), np.flatnonzero(here)[held], op[held])


def _pageable(trace: Trace, links: Links, which: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return the calls for copies of one sort whose host memory is not pinned."""
    device = trace.device
    copies = (device.kind == Kind.MEMCPY) & trace.names_where(
        device.name, lambda name: which.search(name) is not None
    )
    rows = links.device_call[copies]
    waits = np.zeros(len(trace.calls), bool)
    waits[rows[rows >= 0]] = True
    return np.asarray(waits & trace.names_where(trace.calls.name, is_copy_call), bool)


def by_profiler(trace: Trace, links: Links, calls: Calls) -> NDArray[np.bool_]:
    """Return whether the function that asked for the wait, past those that only pass it on, is a
    profiler's."""
    frames = trace.frames
    if not len(frames):
        return np.zeros(len(calls), bool)
    above = links.frame_parent
    passed = trace.names_where(frames.name, lambda name: _PASSED_OVER.search(name) is not None)
    theirs = trace.names_where(frames.name, lambda name: _NOT_THE_PROGRAMS.search(name) is not None)
    at = enclosing(calls, frames, above)
    while (on := (at >= 0) & passed[np.maximum(at, 0)]).any():
        at = np.where(on, above[np.maximum(at, 0)], at)
    return np.asarray((at >= 0) & theirs[np.maximum(at, 0)], bool)


def _named_after(trace: Trace, links: Links, op: Rows) -> Rows:
    """Return the outermost of the known waiting operators around each call, else the innermost
    operator."""
    if not len(trace.ops):
        return op
    said = trace.names_where(trace.ops.name, _SAID.__contains__)
    found, here = op.copy(), op
    while (on := here >= 0).any():
        found = np.where(on & said[np.maximum(here, 0)], here, found)
        here = np.where(on, links.op_parent[np.maximum(here, 0)], -1)
    return found


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
"""Idle time that a host further ahead would have filled."""
_PRINTING = re.compile(r"_tensor_str\.py:|_tensor\.py:(__repr__|__format__)$")
"""Gone as a whole without the wait: all that a tensor's text is made by."""
_TO_DEVICE = re.compile(r"HtoD|HostToDevice|Host -> Device", re.IGNORECASE)
Direction = Literal["", "to device", "to host"]


class _Unit(Struct):
    """One asking: an operator with all its waits, a call, or a tensor being printed."""

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
        """A copy to the device, which is there without the wait too."""
        return self.direction != "to host" and not COPY_OPS.isdisjoint(self.ops)

    @property
    def key(self) -> tuple[object, ...]:
        return self.place, self.ops, self.via, self.direction, "" if self.ops else self.call


class SyncCosts(Struct, frozen=True):
    sites: tuple[SyncSite, ...] = ()
    """The costliest first, by idle time then by the host's."""
    replay: Replay | None = None


def sync_costs(trace: Trace, links: Links, window: Window) -> SyncCosts:
    """Return nothing where the trace has no device."""
    waits = program_waits(trace, links, window, staged=True)
    if not len(waits.row):
        return SyncCosts()
    units, unit_of = _units(trace, links, waits)
    _add_work(trace, links, units)
    kept = _kept(trace, links, waits, window)
    for gaps in idle_gaps(trace, links, window):
        _charge(trace, window, gaps, units, trace.calls.end[kept].tolist())
    groups: dict[tuple[object, ...], list[_Unit]] = {}
    for unit in units:
        groups.setdefault(unit.key, []).append(unit)
    steps = max(window.steps, 1)
    found = [(_site(group, steps), group) for group in groups.values()]
    found.sort(key=lambda one: (-one[0].idle_ns, -one[0].host_ns))
    found = found[:MAX_SYNC_SITES]
    for index, (_, group) in enumerate(found):
        for unit in group:
            unit.site = index
    askings = [Asking(unit.site, unit.lane, unit.start, unit.end) for unit in units]
    blocked = {row: unit.site for row, unit in unit_of.items()}
    return SyncCosts(
        tuple(site for site, _ in found),
        replay_of(
            trace, links, window, askings, {**dict.fromkeys(kept.tolist(), -2), **blocked},
            tuple(group[0].stays for _, group in found),
        ),
    )  # fmt: skip


def _site(group: Sequence[_Unit], steps: int) -> SyncSite:
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


def _units(trace: Trace, links: Links, waits: Waits) -> tuple[list[_Unit], dict[int, _Unit]]:
    """In order of their ends; and for each row of `trace.calls` that waits its own."""
    paths = CallPaths(trace, links).of(waits.calls)
    places = _places(trace, links, waits.calls)
    copied, unit_of = _copied(trace, links), {}
    named: dict[int, tuple[str, ...]] = {}
    found: dict[tuple[str, int], _Unit] = {}
    for i, row in enumerate(waits.row.tolist()):
        op, (via, frames) = int(waits.op[i]), paths[i]
        printing = next((k for k, name in enumerate(via) if _PRINTING.search(name)), -1)
        start, end = int(waits.calls.ts[i]), int(waits.calls.end[i])
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
        name = trace.text(int(waits.calls.name[i]))
        lane = int(waits.calls.lane[i])
        unit = found.setdefault(key, _Unit(places[i], ops, name, via, lane, start, end))
        unit_of[row] = unit
        unit.held += int(waits.calls.dur[i])
        if is_waiting_call(name) or row not in copied:
            unit.waits += 1
    for unit in found.values():
        unit.waits = max(unit.waits, 1)
    units = sorted(found.values(), key=lambda unit: unit.end)
    _add_copies(trace, units, copied)
    return units, unit_of


def _add_copies(trace: Trace, units: Sequence[_Unit], copied: dict[int, tuple[bool, int]]) -> None:
    """Add what was copied inside each unit: another call than the wait may hand over the copy."""
    calls = sorted(copied)
    at = trace.calls.ts[calls] if calls else np.empty(0, np.int64)
    for unit in units:
        first, last = np.searchsorted(at, [unit.start, unit.end])
        for row in calls[first:last]:
            if int(trace.calls.lane[row]) == unit.lane:
                to_device, size = copied[row]
                unit.bytes += size
                unit.sent |= to_device
                unit.returned |= not to_device


def _add_work(trace: Trace, links: Links, units: Sequence[_Unit]) -> None:
    """Add the device work that was asked for inside each unit."""
    if not len(trace.calls):
        return
    call = links.device_call
    asked = np.where(call >= 0, trace.calls.ts[np.maximum(call, 0)], -1)
    lanes = links.launch_lane
    for lane in {unit.lane for unit in units}:
        rows = np.flatnonzero((lanes == lane) & (asked >= 0))
        rows = rows[np.argsort(asked[rows], kind="stable")]
        total = np.append(0, np.cumsum(trace.device.dur[rows]))
        for unit in (unit for unit in units if unit.lane == lane):
            first, last = np.searchsorted(asked[rows], [unit.start, unit.end])
            unit.work = int(total[last] - total[first])


def _ops(trace: Trace, links: Links, row: int) -> tuple[str, ...]:
    return tuple(trace.text(int(trace.ops.name[at])) for at in rows_above(links, row))


def _copied(trace: Trace, links: Links) -> dict[int, tuple[bool, int]]:
    """Return for each call that copies over the link whether it copies to the device, and how
    much."""
    device = trace.device
    found: dict[int, tuple[bool, int]] = {}
    rows = np.flatnonzero((device.kind == Kind.MEMCPY) & (links.device_call >= 0))
    for row in rows.tolist():
        name = trace.text(int(device.name[row]))
        if "DtoD" not in name and "PtoP" not in name:
            size = max(int(device.bytes[row]), 0)
            found[int(links.device_call[row])] = (_TO_DEVICE.search(name) is not None, size)
    return found


def _kept(trace: Trace, links: Links, waits: Waits, window: Window) -> Rows:
    """Return the calls that would still wait: the profiler's, and those between the steps."""
    calls = trace.calls
    rows = np.flatnonzero(
        trace.names_where(calls.name, is_waiting_call)
        & np.isin(calls.lane, driving_lanes(trace, links))
    )
    rows = rows[~np.isin(rows, waits.row)]
    theirs = by_profiler(trace, links, calls.take(rows))
    outside = ~started(calls.take(rows), step_spans(trace, window))
    return np.asarray(rows[theirs | outside], np.int64)


def _charge(
    trace: Trace, window: Window, gaps: IdleGaps, units: Sequence[_Unit], kept: Sequence[int]
) -> None:
    """Go through the gaps in order of time with the credit there is, and charge the units."""
    charged = gaps.ns[:, [CAUSES.index(cause) for cause in CHARGED]].sum(axis=1)
    charged = np.where(gaps.next_op >= 0, charged, 0)  # nothing comes after the last
    # between two marked steps the profiler keeps its books
    inside = covered(step_spans(trace, window), gaps.start, gaps.end)
    part = inside / np.maximum(gaps.end - gaps.start, 1)
    held = _lengths(units)
    moments = iter([*_moments(units, kept), (np.iinfo(np.int64).max, -1)])
    end, index = next(moments)
    credit, last = 0.0, -1
    for i in np.argsort(gaps.end, kind="stable").tolist():
        while end <= gaps.end[i]:
            credit, last = (0.0, -1) if index < 0 else (credit + held[index], index)
            end, index = next(moments)
        if last >= 0 and charged[i]:
            used = min(credit, float(charged[i]))
            credit -= used
            units[last].idle += used * float(part[i])


def _moments(units: Sequence[_Unit], kept: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ends of waits in order of time: the unit's number, or -1 for one that stays."""
    both = [(unit.end, i) for i, unit in enumerate(units)] + [(end, -1) for end in kept]
    return iter(sorted(both))


def _lengths(units: Sequence[_Unit]) -> NDArray[np.int64]:
    """Return the length of each unit without what lies in a unit before it: printing a tensor
    within a print."""
    start = np.array([unit.start for unit in units], np.int64)
    end = np.array([unit.end for unit in units], np.int64)
    before: Rows = np.append(np.int64(start.min() if len(start) else 0), np.maximum.accumulate(end))
    whole = np.maximum(end - np.maximum(start, before[:-1]), 0)
    # a copy's operator also allocates, and reads what is being copied: V100, 7 ms of its 9.5
    held = np.array([u.held if u.stays else u.end - u.start for u in units], np.int64)
    return np.minimum(whole, held)


MAX_REPLAYED_EVENTS = 40_000
"""Events: gone through some twenty times in Python, half a second in all."""

Times = NDArray[np.int64]


class Asking(Struct, frozen=True):
    """What asks for a wait: an operator, a call, the printing of a tensor."""

    site: int
    lane: int
    start: int
    end: int


def replay_of(
    trace: Trace,
    links: Links,
    window: Window,
    askings: Sequence[Asking],
    blocked: Mapping[int, int],
    stays: tuple[bool, ...],
) -> Replay | None:
    """`blocked`: of each row of `trace.calls` that waits its site, or -2. None: too many."""
    spans = step_spans(trace, window)
    call = links.device_call
    known = np.where(call >= 0, trace.calls.ts[np.maximum(call, 0)], -1)
    rows = np.flatnonzero((call >= 0) & (covered(spans, known, known + 1) > 0))
    waits = np.array(sorted(blocked), np.int64)
    waits = waits[covered(spans, trace.calls.ts[waits], trace.calls.ts[waits] + 1) > 0]
    if not len(rows) or len(rows) + len(waits) > MAX_REPLAYED_EVENTS:
        return None
    # the host is at a wait when its call begins, a launch in the same call just before; and it goes
    # on from the wait's end
    at = np.concatenate([known[rows], trace.calls.ts[waits]])
    until = np.concatenate([known[rows], trace.calls.end[waits]])
    is_wait = np.concatenate([np.zeros(len(rows), bool), np.ones(len(waits), bool)])
    order = np.lexsort((is_wait, at))
    at, until, is_wait = at[order], until[order], is_wait[order]
    left = np.append(at[:1], np.maximum.accumulate(until)[:-1])
    asked = sorted(askings, key=lambda one: one.start)
    inside = union(np.array([a.start for a in asked]), np.array([a.end for a in asked]))
    own = covered(spans, np.minimum(left, at), at)
    asking = covered(intersect(spans, inside), np.minimum(left, at), at)
    streams = np.unique(trace.device.stream[rows], return_inverse=True)[1]
    dur = np.concatenate([trace.device.dur[rows], np.full(len(waits), -1)])[order]
    stream = np.concatenate([streams, np.zeros(len(waits), np.int64)])[order]
    site = _sites(at, asked)
    held = np.array([blocked[int(row)] for row in waits], np.int64)
    site[is_wait] = np.concatenate([np.zeros(len(rows), np.int64), held])[order][is_wait]
    return Replay(
        steps=max(window.steps, 1),
        before_ns=tuple((own - asking).tolist()),
        asking_ns=tuple(asking.tolist()),
        site=tuple(site.tolist()),
        dur_ns=tuple(dur.tolist()),
        stream=tuple(stream.tolist()),
        stays=stays,
    )


def _sites(at: Times, asked: Sequence[Asking]) -> Times:
    """Return for each moment the site that asks for the wait around it; -1 where there is none."""
    if not asked:
        return np.full(len(at), -1, np.int64)
    start = np.array([one.start for one in asked], np.int64)
    row = np.searchsorted(start, at, side="right") - 1
    found = np.full(len(at), -1, np.int64)
    for i, index in enumerate(row.tolist()):
        if index >= 0 and at[i] < asked[index].end:
            found[i] = asked[index].site
    return found

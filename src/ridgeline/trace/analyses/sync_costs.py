"""What each place at which the host waits for the device costs: idle time of the device.

A wait itself costs nothing while the device works. Its price comes after it: the host, which
without the wait would have been launching all that time, is not ahead any more. So each wait gives
the host a credit of its own length, and idle time that follows is used up from the credit: so much
earlier would its end have been launched. It is charged to the last wait before it. What the credit
does not reach (a host that is slower than the device anyhow) is not the wait's doing; nor is the
loader's time, a compilation's, the allocator's. A wait of the profiler stays, and takes the credit.

An upper bound: every wait of the program is taken to be gone at once, with all of its operator; of
a copy to the device, which has to be made all the same, only the time the host was held.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.sites import Replay, SyncSite
from ridgeline.records.trace import Cause, Place, Window
from ridgeline.trace.analyses.call_paths import CallPaths, rows_above
from ridgeline.trace.analyses.driving import driving_lanes
from ridgeline.trace.analyses.idle import CAUSES, IdleGaps, idle_gaps
from ridgeline.trace.analyses.replayed import Asking, replay_of
from ridgeline.trace.analyses.step_counts import started, step_spans
from ridgeline.trace.analyses.sync_points import Waits, by_profiler, program_waits
from ridgeline.trace.columns import Events
from ridgeline.trace.host_names import COPY_OPS, is_waiting_call
from ridgeline.trace.intervals import covered
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links, Rows
from ridgeline.trace.places import Places, place_of
from ridgeline.trace.trace import Trace

MOST = 60
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
    """Nothing where the trace has no device."""
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
    found = found[:MOST]
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
    """What was copied inside each: the copy may be handed over by another call than the wait."""
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
    """The device work asked for inside each."""
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
    """Of each call that copies over the link: whether to the device, and how much."""
    device = trace.device
    found: dict[int, tuple[bool, int]] = {}
    rows = np.flatnonzero((device.kind == Kind.MEMCPY) & (links.device_call >= 0))
    for row in rows.tolist():
        name = trace.text(int(device.name[row]))
        if "DtoD" not in name and "PtoP" not in name:
            size = max(int(device.bytes[row]), 0)
            found[int(links.device_call[row])] = (_TO_DEVICE.search(name) is not None, size)
    return found


def _places(trace: Trace, links: Links, calls: Events) -> list[Place | None]:
    """The user's function of each; on a thread without Python, where the main one was."""
    places = Places(trace, links)
    where = places.at(calls.lane.astype(np.int64), calls.ts)
    lost = np.flatnonzero((where == -1) & (calls.lane != links.main_lane))
    where[lost] = places.at(np.full(len(lost), links.main_lane), calls.ts[lost])
    return [place_of(places.text(int(code))) if code != -1 else None for code in where]


def _kept(trace: Trace, links: Links, waits: Waits, window: Window) -> Rows:
    """Calls that would still wait: the profiler's, those between the steps."""
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
    """Of each unit, without what lies in one before it: printing a tensor within a print."""
    start = np.array([unit.start for unit in units], np.int64)
    end = np.array([unit.end for unit in units], np.int64)
    before: Rows = np.append(np.int64(start.min() if len(start) else 0), np.maximum.accumulate(end))
    whole = np.maximum(end - np.maximum(start, before[:-1]), 0)
    # a copy's operator also allocates, and reads what is being copied: V100, 7 ms of its 9.5
    held = np.array([u.held if u.stays else u.end - u.start for u in units], np.int64)
    return np.minimum(whole, held)

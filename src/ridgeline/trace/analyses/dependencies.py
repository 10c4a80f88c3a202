"""What let each device operation start: the one before it on its stream, one on another stream
that an event made it wait for, or its own launch, where that came late."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.columns import Calls, DeviceOps
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.view import blocking, launched, synchronising

_SOON_NS = 50_000
"""Without records of event waits an operation of another stream counts as awaited only if it
ended this short before. A choice, not measured; paths that use it are marked doubtful."""


class By(IntEnum):
    NOTHING = 0
    STREAM = 1
    EVENT = 2
    LAUNCH = 3


class Starts(NamedTuple):
    """One row a device operation."""

    by: NDArray[np.int8]
    row: NDArray[np.int64]
    """The device operation that had to end first; -1 where the launch decided."""
    at: NDArray[np.int64]
    """Start of the launching call, where the launch decided."""
    lane: NDArray[np.int64]
    guessed: NDArray[np.bool_]
    """The event wait is inferred from times."""


@once_per_trace
def starts(trace: Trace, links: Links) -> Starts:
    device = trace.device
    count = len(device)
    end, stream = device.end, streams(device)
    moment, lane = launched(trace, links)
    call = links.device_call
    handed = moment.copy()
    linked = np.flatnonzero(call >= 0)
    handed[linked] = np.minimum(trace.calls.end[call[linked]], device.ts[linked])
    late = (lane >= 0) & (moment <= device.ts)

    before = _before(stream)
    has = before >= 0
    before_end = np.where(has, end[np.maximum(before, 0)], np.iinfo(np.int64).min)
    # kernels of one graph launch follow each other, whenever the call returned
    together = has & (call >= 0) & (call[np.maximum(before, 0)] == call)
    queued = has & (~late | (before_end >= handed) | together)

    awaited, guessed = _awaited(trace, stream, moment)
    ended = end[np.maximum(awaited, 0)]
    event = (awaited >= 0) & (awaited < np.arange(count)) & (ended <= device.ts)
    event &= (ended > before_end) & (~late | (ended >= handed)) & ~together

    by = np.full(count, By.NOTHING, np.int8)
    by[late] = By.LAUNCH
    by[queued] = By.STREAM
    by[event] = By.EVENT
    row = np.where(by == By.STREAM, before, np.where(by == By.EVENT, awaited, -1))
    return Starts(by, row, moment, lane, guessed & event)


def streams(device: DeviceOps) -> NDArray[np.int64]:
    """Return one number for each stream of a device; by row of the timeline where streams are not
    recorded."""
    stream = np.where(device.stream >= 0, device.stream, (1 << 24) + device.lane)
    return (device.device.astype(np.int64) << 32) + stream


def _before(stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row that started before each row on the same stream."""
    order = np.argsort(stream, kind="stable")
    before = np.full(len(stream), -1, np.int64)
    same = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _awaited(
    trace: Trace, stream: NDArray[np.int64], moment: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the operation of another stream that each operation had to wait for, as recorded, else
    by times."""
    calls = trace.calls
    recorded = _recorded(trace, stream, moment)
    if (recorded >= 0).any():
        return recorded, np.zeros(len(stream), bool)
    if not trace.names_where(calls.name, lambda name: "StreamWaitEvent" in name).any():
        return recorded, np.zeros(len(stream), bool)
    device = trace.device
    found = last_ended(device, device.ts, device.device.astype(np.int64), device.device)
    at = np.maximum(found, 0)
    soon = (found >= 0) & (stream[at] != stream) & (device.ts - device.end[at] <= _SOON_NS)
    return np.where(soon, found, -1), soon


def last_ended(
    device: DeviceOps,
    at: NDArray[np.int64],
    key: NDArray[np.int64],
    keys: NDArray[np.int64] | NDArray[np.int32],
) -> NDArray[np.int64]:
    """Return for each moment the last device operation with that key that ended at or before it."""
    found = np.full(len(at), -1, np.int64)
    for one in np.unique(key):
        rows = np.flatnonzero(keys == one)
        if not len(rows):
            continue
        wanted = np.flatnonzero(key == one)
        ends = device.end[rows]
        order = np.argsort(ends, kind="stable")
        place = np.searchsorted(ends[order], at[wanted], side="right") - 1
        found[wanted] = np.where(place >= 0, rows[order[np.maximum(place, 0)]], -1)
    return found


class _EventWaits(NamedTuple):
    """One row a record: this stream waits, from then on, for what that one held until then."""

    stream: NDArray[np.int64]
    since: NDArray[np.int64]
    on: NDArray[np.int64]
    until: NDArray[np.int64]


def _recorded(
    trace: Trace, stream: NDArray[np.int64], moment: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the awaited operations as `Stream Wait Event` records tell them (newer traces)."""
    found = np.full(len(stream), -1, np.int64)
    waits = _event_waits(trace)
    first = np.full(len(waits.since), -1, np.int64)
    last = first.copy()
    for one in np.unique(np.concatenate([waits.stream, waits.on])):
        rows = np.flatnonzero(stream == one)
        if not len(rows):
            continue
        order = np.maximum.accumulate(moment[rows])
        mine = np.flatnonzero(waits.stream == one)
        place = np.searchsorted(order, waits.since[mine], side="right")
        first[mine] = np.where(place < len(rows), rows[np.minimum(place, len(rows) - 1)], -1)
        mine = np.flatnonzero(waits.on == one)
        place = np.searchsorted(order, waits.until[mine], side="left") - 1
        last[mine] = np.where(place >= 0, rows[np.maximum(place, 0)], -1)
    both = np.flatnonzero((first >= 0) & (last >= 0))
    # of several waits the one that ended last counts: it is written last
    both = both[np.argsort(trace.device.end[last[both]], kind="stable")]
    found[first[both]] = last[both]
    return found


def _event_waits(trace: Trace) -> _EventWaits:
    syncs, calls = trace.syncs, trace.calls
    rows = np.flatnonzero(trace.names_where(syncs.name, lambda name: "Wait Event" in name))
    told = [trace.info(int(code)) for code in syncs.info[rows]]
    on = np.array([_number(t.get("wait_on_stream")) for t in told], np.int64)
    event = np.array([_number(t.get("wait_on_cuda_event_record_corr_id")) for t in told], np.int64)
    waiting, record = join(syncs.correlation[rows], calls), join(event, calls)
    keep = (record >= 0) & (on >= 0) & (syncs.stream[rows] >= 0)
    rows, on, waiting, record = rows[keep], on[keep], waiting[keep], record[keep]
    only = trace.device.device[0] if len(trace.device) else 0
    base = np.where(syncs.device[rows] >= 0, syncs.device[rows], only).astype(np.int64) << 32
    since = syncs.ts[rows]
    if len(calls):
        since = np.where(waiting >= 0, calls.ts[np.maximum(waiting, 0)], since)
    until = calls.ts[record] if len(calls) else since
    return _EventWaits(base + syncs.stream[rows], since, base + on, until)


def join(wanted: NDArray[np.int64], calls: Calls) -> NDArray[np.int64]:
    """Return the call of each correlation id; -1 where there is none."""
    if not len(calls) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(calls.correlation, kind="stable")
    ids = calls.correlation[order]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where((ids[at] == wanted) & (wanted > 0), order[at], -1)


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else -1


class HostWaits(NamedTuple):
    """One row a call that the device ended, in order of its end."""

    end: NDArray[np.int64]
    lane: NDArray[np.int64]
    row: NDArray[np.int64]
    """The device operation that ended last before the call did."""


@once_per_trace
def host_waits(trace: Trace, links: Links) -> HostWaits:
    calls, device = trace.calls, trace.device
    copies = _copies(trace, links)
    rows = np.flatnonzero(synchronising(trace, calls))
    found = _synchronised(trace, links, rows)
    rows, found = np.append(copies[0], rows), np.append(copies[1], found)
    if not len(device) or not len(rows):
        return HostWaits(*(np.empty(0, np.int64) for _ in range(3)))
    # a call that found the device already done did not wait
    ended = device.end[np.maximum(found, 0)]
    held = (found >= 0) & (ended > calls.ts[rows]) & (ended <= calls.end[rows])
    rows, found = rows[held], found[held]
    order = np.argsort(calls.end[rows], kind="stable")
    rows, found = rows[order], found[order]
    return HostWaits(calls.end[rows], calls.lane[rows].astype(np.int64), found)


def _copies(trace: Trace, links: Links) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the copies through pageable memory, which return after the copy, whatever their name
    says."""
    holds = blocking(trace, trace.calls)
    rows = np.flatnonzero(links.device_call >= 0)
    rows = rows[holds[links.device_call[rows]]] if len(holds) else rows[:0]
    return links.device_call[rows], rows


def _synchronised(trace: Trace, links: Links, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the operation that each synchronising call waited for: the last on its stream, else
    the last on any."""
    calls, device = trace.calls, trace.device
    at, stream = calls.end[rows], streams(device)
    every = np.zeros(len(device), np.int64)
    anywhere = last_ended(device, at, np.zeros(len(rows), np.int64), every)
    if len(np.unique(stream)) < 2:
        return anywhere
    known = _stream_of(trace, links, rows, stream)
    there = last_ended(device, at, known, stream)
    waited = (there >= 0) & (device.end[np.maximum(there, 0)] > calls.ts[rows])
    return np.where(waited, there, anywhere)


def _stream_of(
    trace: Trace, links: Links, rows: NDArray[np.int64], stream: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the stream of each call: by the device's record of it, else the stream that its thread
    used last; -1 where unknown."""
    calls, syncs, device = trace.calls, trace.syncs, trace.device
    known = np.full(len(rows), -1, np.int64)
    one = trace.names_where(calls.name[rows], lambda name: "StreamSync" in name)
    moment, lane = launched(trace, links)
    for thread in np.unique(calls.lane[rows[one]]):
        sent = np.flatnonzero(lane == thread)
        sent = sent[np.argsort(moment[sent], kind="stable")]
        mine = np.flatnonzero(one & (calls.lane[rows] == thread))
        place = np.searchsorted(moment[sent], calls.ts[rows[mine]], side="right") - 1
        if len(sent):
            known[mine] = np.where(place >= 0, stream[sent[np.maximum(place, 0)]], -1)
    told = np.flatnonzero(syncs.stream >= 0)
    call = join(syncs.correlation[told], calls)
    on = np.maximum(syncs.device[told], device.device.min()).astype(np.int64) << 32
    by_call = np.full(len(calls), -1, np.int64)
    by_call[call[call >= 0]] = (on + syncs.stream[told])[call >= 0]
    return np.where(by_call[rows] >= 0, by_call[rows], known)

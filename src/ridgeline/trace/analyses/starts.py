"""What let each device operation start: the one before it on its stream, one on another stream
that an event made it wait for, or its own launch, where that came late."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.analyses.driving import launched
from ridgeline.trace.columns import DeviceOps
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace

_SOON_NS = 50_000
"""Without records of event waits an operation of another stream counts as awaited only if it
ended this short before: a stream takes up work some microseconds after its event."""


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

    awaited, guessed = _awaited(trace, links, stream, moment)
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
    """One number a stream of a device; by timeline row where streams are not recorded."""
    stream = np.where(device.stream >= 0, device.stream, (1 << 24) + device.lane)
    return (device.device.astype(np.int64) << 32) + stream


def _before(stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row that started before each on the same stream."""
    order = np.argsort(stream, kind="stable")
    before = np.full(len(stream), -1, np.int64)
    same = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _awaited(
    trace: Trace, links: Links, stream: NDArray[np.int64], moment: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The operation of another stream each had to wait for: as recorded, else by times."""
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
    """For each moment the device operation with that key that ended last, at it or before."""
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


def _recorded(
    trace: Trace, stream: NDArray[np.int64], moment: NDArray[np.int64]
) -> NDArray[np.int64]:
    """From `Stream Wait Event` records: which stream waited, and after which record of an event."""
    syncs, device, calls = trace.syncs, trace.device, trace.calls
    found = np.full(len(device), -1, np.int64)
    waits = trace.names_where(syncs.name, lambda name: "Wait Event" in name)
    called = dict(zip(calls.correlation.tolist(), calls.ts.tolist(), strict=True)) if waits.any() else {}
    for index in np.flatnonzero(waits).tolist():
        told = trace.info(int(syncs.info[index]))
        on, record = told.get("wait_on_stream"), told.get("wait_on_cuda_event_record_corr_id")
        if not isinstance(on, int) or not isinstance(record, int) or record not in called:
            continue
        base = int(syncs.device[index]) << 32
        since = called.get(int(syncs.correlation[index]), int(syncs.ts[index]))
        first = _launched_after(stream, moment, base + int(syncs.stream[index]), since)
        last = _launched_before(stream, moment, base + on, called[record])
        if first >= 0 and last >= 0 and device.end[last] > device.end[found[first]] * (found[first] >= 0):
            found[first] = last
    return found

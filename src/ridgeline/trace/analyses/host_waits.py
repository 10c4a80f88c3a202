"""Where the host waited for the device, and which device operation let it go on."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.analyses.driving import blocking, launched, synchronising
from ridgeline.trace.analyses.starts import join, last_ended, streams
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace


class HostWaits(NamedTuple):
    """One row a call that the device ended, in order of its end."""

    end: NDArray[np.int64]
    lane: NDArray[np.int64]
    row: NDArray[np.int64]
    """The device operation that ended last before the call did."""


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
    """Copies through pageable memory return after the copy, whatever their name says."""
    holds = blocking(trace, trace.calls)
    rows = np.flatnonzero(links.device_call >= 0)
    rows = rows[holds[links.device_call[rows]]] if len(holds) else rows[:0]
    return links.device_call[rows], rows


def _synchronised(trace: Trace, links: Links, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The operation each synchronising call waited for: on its stream, else on any."""
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
    """By the device's record of the call; else the stream its thread used last; -1 unknown."""
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

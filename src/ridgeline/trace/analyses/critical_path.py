"""The critical path: the chain of work that decided when the window ended.

The path is walked backwards. A device operation starts when the operation before it on its stream
ends, when an operation of another stream that it waits for ends, or, if it was launched late, some
time after its launching call. From that call, the host is followed back to its last wait for the
device, and from there to the operation that the host waited for. Each moment of the window is on
the path exactly once.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.facts import Trust
from ridgeline.records.trace import CriticalPath, PathShare, Window
from ridgeline.trace.columns import Calls, DeviceOps, Events
from ridgeline.trace.host_states import blocking, driving_lanes, launched, synchronising
from ridgeline.trace.intervals import Spans, covered, merge, parents, subtract, union
from ridgeline.trace.links import Links, sums_by
from ridgeline.trace.trace import Trace, once_per_trace

_MAX_AWAITED_GAP_NS = 50_000
"""Without records of event waits, an operation of another stream counts as awaited only if it ended
at most this long before. A choice, not measured; paths that use it are marked doubtful."""


class StartedBy(IntEnum):
    NOTHING = 0
    STREAM = 1
    EVENT = 2
    LAUNCH = 3


class Starts(NamedTuple):
    """Says what let each device operation (row) start: the operation before it on its stream, one
    on another stream that an event made it wait for, or its own late launch."""

    by: NDArray[np.int8]
    row: NDArray[np.int64]
    """The device operation that had to end first; -1 where the launch decided."""
    at: NDArray[np.int64]
    """The start of the launching call."""
    lane: NDArray[np.int64]
    guessed: NDArray[np.bool_]
    """Whether the wait for an event is inferred from times."""


@once_per_trace
def starts(trace: Trace, links: Links) -> Starts:
    device = trace.device
    count = len(device)
    end, stream = device.end, streams(device)
    moment, lane = launched(trace, links)
    call = links.device_call
    handed_over = moment.copy()
    linked = np.flatnonzero(call >= 0)
    handed_over[linked] = np.minimum(trace.calls.end[call[linked]], device.ts[linked])
    late = (lane >= 0) & (moment <= device.ts)

    before = _previous_on_stream(stream)
    has_previous = before >= 0
    before_end = np.where(has_previous, end[np.maximum(before, 0)], np.iinfo(np.int64).min)
    # kernels of one graph launch follow each other, whenever the call returned
    same_launch = has_previous & (call >= 0) & (call[np.maximum(before, 0)] == call)
    queued = has_previous & (~late | (before_end >= handed_over) | same_launch)

    awaited, guessed = _event_dependencies(trace, stream, moment)
    ended = end[np.maximum(awaited, 0)]
    event = (awaited >= 0) & (awaited < np.arange(count)) & (ended <= device.ts)
    event &= (ended > before_end) & (~late | (ended >= handed_over)) & ~same_launch

    by = np.full(count, StartedBy.NOTHING, np.int8)
    by[late] = StartedBy.LAUNCH
    by[queued] = StartedBy.STREAM
    by[event] = StartedBy.EVENT
    row = np.where(by == StartedBy.STREAM, before, np.where(by == StartedBy.EVENT, awaited, -1))
    return Starts(by, row, moment, lane, guessed & event)


def streams(device: DeviceOps) -> NDArray[np.int64]:
    """Return a number for the device and stream of each operation. Where streams are not recorded,
    each row of the timeline counts as a stream."""
    stream = np.where(device.stream >= 0, device.stream, (1 << 24) + device.lane)
    return (device.device.astype(np.int64) << 32) + stream


def _previous_on_stream(stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each row the row before it on the same stream; -1 for the first."""
    order = np.argsort(stream, kind="stable")
    before = np.full(len(stream), -1, np.int64)
    same = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _event_dependencies(
    trace: Trace, stream: NDArray[np.int64], moment: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the operation of another stream for which each operation had to wait, from records or,
    without any, from times; and whether it is inferred from times."""
    calls = trace.calls
    recorded = _recorded_dependencies(trace, stream, moment)
    if (recorded >= 0).any():
        return recorded, np.zeros(len(stream), bool)
    if not trace.names_where(calls.name, lambda name: "StreamWaitEvent" in name).any():
        return recorded, np.zeros(len(stream), bool)
    device = trace.device
    last = last_ended(device, device.ts, device.device.astype(np.int64), device.device)
    last_row = np.maximum(last, 0)
    is_close = (
        (last >= 0)
        & (stream[last_row] != stream)
        & (device.ts - device.end[last_row] <= _MAX_AWAITED_GAP_NS)
    )
    return np.where(is_close, last, -1), is_close


def last_ended(
    device: DeviceOps,
    at: NDArray[np.int64],
    key: NDArray[np.int64],
    keys: NDArray[np.int64] | NDArray[np.int32],
) -> NDArray[np.int64]:
    """Return for each moment the last device operation with that key that ended at or before it."""
    last = np.full(len(at), -1, np.int64)
    for stream in np.unique(key):
        rows = np.flatnonzero(keys == stream)
        if not len(rows):
            continue
        asked_for = np.flatnonzero(key == stream)
        ends = device.end[rows]
        order = np.argsort(ends, kind="stable")
        position = np.searchsorted(ends[order], at[asked_for], side="right") - 1
        last[asked_for] = np.where(position >= 0, rows[order[np.maximum(position, 0)]], -1)
    return last


class _EventWaits(NamedTuple):
    """One row for each record: from `since` on, `stream` waits for the operations that the stream
    `on` was given until `until`."""

    stream: NDArray[np.int64]
    since: NDArray[np.int64]
    on: NDArray[np.int64]
    until: NDArray[np.int64]


def _recorded_dependencies(
    trace: Trace, stream: NDArray[np.int64], moment: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the awaited operations from `Stream Wait Event` records, which newer traces have."""
    dependencies = np.full(len(stream), -1, np.int64)
    waits = _event_waits(trace)
    first = np.full(len(waits.since), -1, np.int64)
    last = first.copy()
    for number in np.unique(np.concatenate([waits.stream, waits.on])):
        rows = np.flatnonzero(stream == number)
        if not len(rows):
            continue
        order = np.maximum.accumulate(moment[rows])
        of_stream = np.flatnonzero(waits.stream == number)
        place = np.searchsorted(order, waits.since[of_stream], side="right")
        first[of_stream] = np.where(place < len(rows), rows[np.minimum(place, len(rows) - 1)], -1)
        of_stream = np.flatnonzero(waits.on == number)
        place = np.searchsorted(order, waits.until[of_stream], side="left") - 1
        last[of_stream] = np.where(place >= 0, rows[np.maximum(place, 0)], -1)
    both = np.flatnonzero((first >= 0) & (last >= 0))
    # of several waits, the one that ended last counts, so it is written last
    both = both[np.argsort(trace.device.end[last[both]], kind="stable")]
    dependencies[first[both]] = last[both]
    return dependencies


def _event_waits(trace: Trace) -> _EventWaits:
    syncs, calls = trace.syncs, trace.calls
    rows = np.flatnonzero(trace.names_where(syncs.name, lambda name: "Wait Event" in name))
    details = [trace.info(int(code)) for code in syncs.info[rows]]
    on = np.array([_small_number(detail.get("wait_on_stream")) for detail in details], np.int64)
    event = np.array(
        [_small_number(detail.get("wait_on_cuda_event_record_corr_id")) for detail in details],
        np.int64,
    )
    waiting, record = (
        calls_by_correlation(syncs.correlation[rows], calls),
        calls_by_correlation(event, calls),
    )
    keep = (record >= 0) & (on >= 0) & (syncs.stream[rows] >= 0)
    rows, on, waiting, record = rows[keep], on[keep], waiting[keep], record[keep]
    single_device = trace.device.device[0] if len(trace.device) else 0
    base = (
        np.where(syncs.device[rows] >= 0, syncs.device[rows], single_device).astype(np.int64) << 32
    )
    since = syncs.ts[rows]
    if len(calls):
        since = np.where(waiting >= 0, calls.ts[np.maximum(waiting, 0)], since)
    until = calls.ts[record] if len(calls) else since
    return _EventWaits(base + syncs.stream[rows], since, base + on, until)


def calls_by_correlation(wanted: NDArray[np.int64], calls: Calls) -> NDArray[np.int64]:
    """Return the call of each correlation id; -1 where there is none."""
    if not len(calls) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(calls.correlation, kind="stable")
    ids = calls.correlation[order]
    position = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where((ids[position] == wanted) & (wanted > 0), order[position], -1)


def _small_number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else -1


class HostWaits(NamedTuple):
    """One row for each call of the host that waited for the device, in order of its end."""

    end: NDArray[np.int64]
    lane: NDArray[np.int64]
    row: NDArray[np.int64]
    """The last device operation that ended before the call did."""


@once_per_trace
def host_waits(trace: Trace, links: Links) -> HostWaits:
    calls, device = trace.calls, trace.device
    copies = _blocking_copies(trace, links)
    rows = np.flatnonzero(synchronising(trace, calls))
    last_operation = _synchronised(trace, links, rows)
    rows, last_operation = np.append(copies[0], rows), np.append(copies[1], last_operation)
    if not len(device) or not len(rows):
        return HostWaits(*(np.empty(0, np.int64) for _ in range(3)))
    # a call that found the device already done did not wait
    ended = device.end[np.maximum(last_operation, 0)]
    has_waited = (last_operation >= 0) & (ended > calls.ts[rows]) & (ended <= calls.end[rows])
    rows, last_operation = rows[has_waited], last_operation[has_waited]
    order = np.argsort(calls.end[rows], kind="stable")
    rows, last_operation = rows[order], last_operation[order]
    return HostWaits(calls.end[rows], calls.lane[rows].astype(np.int64), last_operation)


def _blocking_copies(trace: Trace, links: Links) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the calls of copies that may hold the host, and the device rows of their copies. A
    copy through pageable memory returns after the copy, also where its name says Async."""
    blocks = blocking(trace, trace.calls)
    rows = np.flatnonzero(links.device_call >= 0)
    rows = rows[blocks[links.device_call[rows]]] if len(blocks) else rows[:0]
    return links.device_call[rows], rows


def _synchronised(trace: Trace, links: Links, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the operation for which each synchronising call waited: the last one on its stream or,
    if none is known, the last one on any stream."""
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
    stream_of_thread = np.full(len(rows), -1, np.int64)
    waits_for_stream = trace.names_where(calls.name[rows], lambda name: "StreamSync" in name)
    moment, lane = launched(trace, links)
    for thread in np.unique(calls.lane[rows[waits_for_stream]]):
        sent = np.flatnonzero(lane == thread)
        sent = sent[np.argsort(moment[sent], kind="stable")]
        of_thread = np.flatnonzero(waits_for_stream & (calls.lane[rows] == thread))
        place = np.searchsorted(moment[sent], calls.ts[rows[of_thread]], side="right") - 1
        if len(sent):
            stream_of_thread[of_thread] = np.where(
                place >= 0, stream[sent[np.maximum(place, 0)]], -1
            )
    recorded = np.flatnonzero(syncs.stream >= 0)
    call = calls_by_correlation(syncs.correlation[recorded], calls)
    device_part = np.maximum(syncs.device[recorded], device.device.min()).astype(np.int64) << 32
    by_call = np.full(len(calls), -1, np.int64)
    by_call[call[call >= 0]] = (device_part + syncs.stream[recorded])[call >= 0]
    return np.where(by_call[rows] >= 0, by_call[rows], stream_of_thread)


MAX_OPERATIONS = 2_000_000
"""The walk ends after this many device operations. 130,000 took 0.1 s under a profiler."""
MAX_PARTS = 30

_LAUNCH, _STREAM, _EVENT, _SYNC, _UNKNOWN, _UNWALKED = range(6)
_WAITS = (
    "launch latency",
    "between operations of a stream",
    "between an event and the stream that waits for it",
    "return from synchronisation",
    "unknown: no launch in the trace",
    "not walked",
)


class _Walk(NamedTuple):
    rows: NDArray[np.int64]
    """The device operations on the path, the last first."""
    final: int
    """The wait of the host after which the window ends; -1: none, -2: the window ends on the
    device."""
    capped: bool


class _Pieces(NamedTuple):
    """Spans of the path. `what` is the operation's row for device spans, the thread for host spans,
    and the index into _WAITS for waiting."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    what: NDArray[np.int64]


class _Path(NamedTuple):
    device: _Pieces
    host: _Pieces
    wait: _Pieces


class _Back(NamedTuple):
    """For each operation: the host's last wait before its launch (-1: none), and the operation that
    the wait was for."""

    wait: NDArray[np.int64]
    row: NDArray[np.int64]


def critical_path(trace: Trace, links: Links, window: Window) -> CriticalPath:
    if window.ns <= 0:
        return CriticalPath(trust=Trust(confidence="unreliable", why="the window is empty"))
    lanes = driving_lanes(trace, links)
    walk, path, started = _walked(trace, links, lanes, window)
    shares = [
        *_device_shares(trace, path.device),
        *_host_shares(trace, links, lanes, path.host),
        *_wait_shares(path.wait),
    ]
    total = {
        side: sum(s.ns for s in shares if s.side == side) for side in ("host", "device", "wait")
    }
    shares.sort(key=lambda share: (-share.ns, share.what))
    return CriticalPath(
        total_ns=sum(total.values()),
        host_ns=total["host"],
        device_ns=total["device"],
        wait_ns=total["wait"],
        top=tuple(
            PathShare(what=s.what, side=s.side, ns=s.ns, share=s.ns / window.ns, count=s.count)
            for s in shares[:MAX_PARTS]
        ),
        trust=_trust(trace, walk, started),
    )


def device_on_path(trace: Trace, links: Links, window: Window) -> NDArray[np.int64]:
    """Return the time of each device operation that is on the path."""
    spent = np.zeros(len(trace.device), np.int64)
    if window.ns > 0 and len(spent):
        pieces = _walked(trace, links, driving_lanes(trace, links), window)[1].device
        np.add.at(spent, pieces.what, pieces.end - pieces.start)
    return spent


@once_per_trace
def _walked(
    trace: Trace, links: Links, lanes: NDArray[np.int64], window: Window
) -> tuple[_Walk, _Path, Starts]:
    started, waits = starts(trace, links), host_waits(trace, links)
    back = _back(trace, lanes, started, waits)
    walk = _walk(trace, links, lanes, window, started, back, waits)
    return walk, _path(trace, links, window, started, back, waits, walk), started


def _back(trace: Trace, lanes: NDArray[np.int64], started: Starts, waits: HostWaits) -> _Back:
    wait = np.full(len(started.by), -1, np.int64)
    launched = started.by == StartedBy.LAUNCH
    for lane in np.unique(started.lane[launched]):
        rows = np.flatnonzero(launched & (started.lane == lane))
        wait[rows] = _last_wait_before(trace, lanes, waits, int(lane), started.at[rows])
    row = waits.row[np.maximum(wait, 0)] if len(waits.row) else wait
    # the walk must go backwards even if the clocks are wrong
    is_earlier = (wait >= 0) & (row < np.arange(len(wait)))
    return _Back(np.where(is_earlier, wait, -1), np.where(is_earlier, row, -1))


def _last_wait_before(
    trace: Trace,
    lanes: NDArray[np.int64],
    waits: HostWaits,
    lane: int,
    at: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return for each moment of a thread the last wait for the device before it. A wait of another
    thread counts if this thread did nothing meanwhile: it waited for that thread."""
    ops, calls = trace.ops, trace.calls
    own_ops, own_calls = ops.lane == lane, calls.lane == lane
    busy = merge(
        union(ops.ts[own_ops], ops.end[own_ops], sorted_=True),
        union(calls.ts[own_calls], calls.end[own_calls], sorted_=True),
    )
    idle = covered(busy, waits.end, waits.end + 1) == 0
    visible = np.flatnonzero((waits.lane == lane) | (idle & np.isin(waits.lane, lanes)))
    place = np.searchsorted(waits.end[visible], at, side="right") - 1
    return np.where(place >= 0, visible[np.maximum(place, 0)], -1) if len(visible) else place


def _walk(
    trace: Trace,
    links: Links,
    lanes: NDArray[np.int64],
    window: Window,
    started: Starts,
    back: _Back,
    waits: HostWaits,
) -> _Walk:
    device = trace.device
    ends, final = device.end, -2
    here = np.flatnonzero(device.ts < window.end_ns)
    running = here[ends[here] >= window.end_ns]
    row = -1
    if len(running) or not len(lanes):
        # if several operations run at the end of the window, the longest-running one decides
        last = running if len(running) else here
        row = int(last[np.argmax(ends[last])]) if len(last) else -1
    else:
        at = np.array([window.end_ns])
        final = int(_last_wait_before(trace, lanes, waits, links.main_lane, at)[0])
        row = int(waits.row[final]) if final >= 0 else -1
    onward = np.where(started.by == StartedBy.LAUNCH, back.row, started.row)
    onward[device.ts <= window.start_ns] = -1
    following = onward.data  # plain integers without a list of them all
    path: list[int] = []
    while row >= 0 and len(path) < MAX_OPERATIONS:
        path.append(row)
        row = following[row]
    return _Walk(np.array(path, np.int64), final, row >= 0)


def _path(
    trace: Trace,
    links: Links,
    window: Window,
    started: Starts,
    back: _Back,
    waits: HostWaits,
    walk: _Walk,
) -> _Path:
    """Return the walk as spans that tile the window."""
    rows, low, high = walk.rows, window.start_ns, window.end_ns
    start, end = trace.device.ts[rows], np.minimum(trace.device.end[rows], high)
    by, at = started.by[rows], np.minimum(started.at[rows], start)
    # an operation is on the path until the next one of the path starts
    left = np.minimum(end, np.append(high, start[:-1])) if len(rows) else end
    below = np.append(left[1:], low) if len(rows) else left
    wait = back.wait[rows]
    floor = waits.end[np.maximum(wait, 0)] if len(waits.end) else wait
    floor = np.where(wait >= 0, floor, low)
    launched = by == StartedBy.LAUNCH
    sort = np.select(
        [by == StartedBy.STREAM, by == StartedBy.EVENT, launched],
        [_STREAM, _EVENT, _SYNC],
        _UNKNOWN,
    )
    if walk.capped:
        sort[-1] = _UNWALKED
    tail = _end_of_window(links, window, waits, walk, int(left[0]) if len(rows) else low)
    return _Path(
        _pieces_in_window(window, [(start, left, rows)]),
        _pieces_in_window(window, [(floor, at, started.lane[rows], launched), tail[0]]),
        _pieces_in_window(
            window,
            [
                (at, start, np.full(len(rows), _LAUNCH), launched),
                (below, np.where(launched, floor, start), sort),
                tail[1],
            ],
        ),
    )


def _end_of_window(
    links: Links, window: Window, waits: HostWaits, walk: _Walk, left: int
) -> tuple[tuple[NDArray[np.int64], ...], tuple[NDArray[np.int64], ...]]:
    """Return the host's work and the waiting from the last device operation of the path to the end
    of the window."""
    high = window.end_ns
    if walk.final == -2:
        return _single_span(high, high, -1), _single_span(left, high, _UNKNOWN)
    floor = int(waits.end[walk.final]) if walk.final >= 0 else window.start_ns
    return _single_span(floor, high, links.main_lane), _single_span(left, floor, _SYNC)


def _single_span(start: int, end: int, what: int) -> tuple[NDArray[np.int64], ...]:
    return tuple(np.array([value], np.int64) for value in (start, end, what))


def _pieces_in_window(window: Window, parts: list[tuple[NDArray[Any], ...]]) -> _Pieces:
    """Join parts (start, end, what and, optionally, a mask of rows) into one table, clipped to the
    window."""
    columns = []
    for start, end, what, *which in parts:
        low, high = (np.clip(time, window.start_ns, window.end_ns) for time in (start, end))
        keep = high > low
        for chosen in which:
            keep &= chosen
        columns.append((low[keep], high[keep], what[keep]))
    return _Pieces(
        *(np.concatenate(column).astype(np.int64) for column in zip(*columns, strict=True))
    )


def _device_shares(trace: Trace, pieces: _Pieces) -> list[PathShare]:
    names, code_of_row = np.unique(trace.device.name[pieces.what], return_inverse=True)
    return _shares_by_name([trace.text(int(n)) for n in names], code_of_row, pieces, "device")


def _wait_shares(pieces: _Pieces) -> list[PathShare]:
    return _shares_by_name(_WAITS, pieces.what, pieces, "wait")


def _shares_by_name(
    names: Sequence[str], at: NDArray[Any], pieces: _Pieces, side: Literal["device", "wait"]
) -> list[PathShare]:
    total = sums_by(at, pieces.end - pieces.start, len(names))
    count = np.bincount(at, minlength=len(names))
    return [
        PathShare(what=name, side=side, ns=ns, share=0.0, count=many)
        for name, ns, many in zip(names, total.tolist(), count.tolist(), strict=True)
        if ns
    ]


def _host_shares(
    trace: Trace, links: Links, lanes: NDArray[np.int64], pieces: _Pieces
) -> list[PathShare]:
    summed: dict[str, tuple[int, int]] = {}
    for lane in np.unique(pieces.what).tolist():
        of_lane = pieces.what == lane
        spans = union(pieces.start[of_lane], pieces.end[of_lane])
        for part in host_time(trace, links, lanes, lane, spans):
            ns, count = summed.get(part.name, (0, 0))
            summed[part.name] = (ns + part.ns, count + part.rows)
    return [
        PathShare(what=name, side="host", ns=ns, share=0.0, count=count)
        for name, (ns, count) in summed.items()
    ]


def _trust(trace: Trace, walk: _Walk, started: Starts) -> Trust:
    rows = walk.rows
    if not len(trace.device):
        return Trust(
            confidence="doubtful", why="no device work: the path is the main thread's own time"
        )
    if walk.capped:
        return Trust(
            confidence="unreliable",
            why=f"the path was left after {MAX_OPERATIONS:,} device operations",
        )
    why = []
    unlaunched = int((started.lane[rows] < 0).sum())
    if unlaunched:
        why.append(
            f"{unlaunched} of {len(rows)} operations on the path have no launch in the trace"
        )
    guessed = int(started.guessed[rows].sum())
    if guessed:
        why.append(
            f"{guessed} waits between streams are inferred from times: the trace has no records"
        )
    doubtful = bool(guessed) or unlaunched > 0.05 * len(rows)
    return Trust(confidence="doubtful" if doubtful else "good", why="; ".join(why))


NO_OPERATOR = "Python / no operator"


class Part(NamedTuple):
    name: str
    ns: int
    rows: int
    """The number of operators with this name that contributed."""


def host_time(
    trace: Trace, links: Links, lanes: NDArray[np.int64], lane: int, spans: Spans
) -> list[Part]:
    """Split the host time of `lane` in these spans by operator. Where it did nothing, another
    driving thread may have worked (the backward's, while the main thread waits). The parts add up
    to the spans."""
    totals: dict[int, tuple[int, int]] = {}
    left = spans
    for table in _layers(trace, links, lanes, lane):
        if not len(left):
            break
        rows = np.flatnonzero(covered(left, table.ts, table.end) > 0)
        if not len(rows):
            continue
        layer = table.take(rows)
        start, end, row = leaves(layer.ts, layer.end)
        for name, ns, count in _shares(layer, row, covered(left, start, end)):
            before = totals.get(name, (0, 0))
            totals[name] = (before[0] + ns, before[1] + count)
        left = subtract(left, union(start, end, sorted_=True))
    parts = [Part(trace.text(name), ns, count) for name, (ns, count) in totals.items()]
    return [*parts, Part(NO_OPERATOR, left.total, len(left))] if len(left) else parts


def _layers(trace: Trace, links: Links, lanes: NDArray[np.int64], lane: int) -> Iterator[Events]:
    """Yield the tables in which host time is looked up, the most specific first."""
    ops, calls, spans = trace.ops, trace.calls, trace.annotations
    # a launch is time of its operator; waiting calls and calls outside operators stand alone
    counts_alone = synchronising(trace, calls) | (links.call_op < 0)
    for thread in [lane, *(other for other in lanes.tolist() if other != lane)]:
        yield calls.take(counts_alone & (calls.lane == thread))
        yield ops.take(ops.lane == thread)
    steps = trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
    for thread in dict.fromkeys([lane, links.main_lane]):
        yield spans.take(~steps & (spans.lane == thread))


def _shares(
    layer: Events, row: NDArray[np.int64], ns: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """Return (name, ns, rows) for the pieces of events."""
    # the last: no name (-1)
    total = sums_by(layer.name[row], ns, int(layer.name.max()) + 2)
    seen = np.zeros(len(layer), bool)
    seen[row[ns > 0]] = True
    count = sums_by(layer.name[seen], 1, len(total))
    names = np.flatnonzero(total)
    return list(zip(names.tolist(), total[names].tolist(), count[names].tolist(), strict=True))


def leaves(
    start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut nested intervals into pieces, each with the innermost row around it. The intervals are
    ordered by start, longer first. A row that outlives the row around it is cut at the end of that
    row."""
    above = parents(start, end)
    while True:
        around = np.where(above >= 0, end[np.maximum(above, 0)], np.iinfo(np.int64).max)
        if (end <= around).all():
            break
        end = np.minimum(end, around)
    rows = np.flatnonzero(end > start)
    # where a row ends, the row above goes on: inner ends come before outer ones
    inner_first = rows[::-1]
    ends = inner_first[np.argsort(end[inner_first], kind="stable")]
    times = np.concatenate([end[ends], start[rows]])
    owner = np.concatenate([above[ends], rows])
    order = np.argsort(times, kind="stable")
    times, owner = times[order], owner[order]
    low, high, owner = times[:-1], times[1:], owner[:-1]
    keep = (high > low) & (owner >= 0)
    return low[keep], high[keep], owner[keep]

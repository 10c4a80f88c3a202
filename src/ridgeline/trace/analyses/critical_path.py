"""The critical path: the chain of work that decided when the window ended.

Walked backwards. A device operation started when the one before it on its stream ended, when one
it awaited on another stream did, or, launched late, some time after its launching call; from
there the host is followed back to the last call in which it waited for the device, and from that
call to the operation it waited for. Every moment of the window is on the path once.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import CriticalPath, PathShare, Window
from ridgeline.records.trust import Trust
from ridgeline.trace.columns import Calls, DeviceOps, Events
from ridgeline.trace.host_states import blocking, driving_lanes, launched, synchronising
from ridgeline.trace.intervals import Spans, covered, merge, parents, subtract, union
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace, once_per_trace

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

    before = _previous_on_stream(stream)
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


def _previous_on_stream(stream: NDArray[np.int64]) -> NDArray[np.int64]:
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


MAX_OPERATIONS = 2_000_000
"""The walk ends after so many device operations; 130 thousand took 0.1 s under a profiler."""
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
    """Device operations on the path, the last first."""
    final: int
    """The wait of the host the window ends after; -1: none, -2: it ends on the device."""
    capped: bool


class _Pieces(NamedTuple):
    """Spans of the path: those of the device with the operation's row, of the host with the
    thread, of waiting with the sort."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    what: NDArray[np.int64]


class _Path(NamedTuple):
    device: _Pieces
    host: _Pieces
    wait: _Pieces


class _Back(NamedTuple):
    """Where each launch leads: the wait of the host before it (-1: none), and its operation."""

    wait: NDArray[np.int64]
    row: NDArray[np.int64]


def critical_path(trace: Trace, links: Links, window: Window) -> CriticalPath:
    if window.ns <= 0:
        return CriticalPath(trust=Trust(confidence="unreliable", why="the window is empty"))
    lanes = driving_lanes(trace, links)
    walk, path, begun = _walked(trace, links, lanes, window)
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
        trust=_trust(trace, walk, begun),
    )


def device_on_path(trace: Trace, links: Links, window: Window) -> NDArray[np.int64]:
    """Return for each device operation how much of its time is on the path."""
    spent = np.zeros(len(trace.device), np.int64)
    if window.ns > 0 and len(spent):
        pieces = _walked(trace, links, driving_lanes(trace, links), window)[1].device
        np.add.at(spent, pieces.what, pieces.end - pieces.start)
    return spent


@once_per_trace
def _walked(
    trace: Trace, links: Links, lanes: NDArray[np.int64], window: Window
) -> tuple[_Walk, _Path, Starts]:
    begun, waits = starts(trace, links), host_waits(trace, links)
    back = _back(trace, lanes, begun, waits)
    walk = _walk(trace, links, lanes, window, begun, back, waits)
    return walk, _path(trace, links, window, begun, back, waits, walk), begun


def _back(trace: Trace, lanes: NDArray[np.int64], begun: Starts, waits: HostWaits) -> _Back:
    wait = np.full(len(begun.by), -1, np.int64)
    launched = begun.by == By.LAUNCH
    for lane in np.unique(begun.lane[launched]):
        rows = np.flatnonzero(launched & (begun.lane == lane))
        wait[rows] = _before(trace, lanes, waits, int(lane), begun.at[rows])
    row = waits.row[np.maximum(wait, 0)] if len(waits.row) else wait
    # only ever backwards, whatever the clocks say
    sound = (wait >= 0) & (row < np.arange(len(wait)))
    return _Back(np.where(sound, wait, -1), np.where(sound, row, -1))


def _before(
    trace: Trace,
    lanes: NDArray[np.int64],
    waits: HostWaits,
    lane: int,
    at: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return for each moment of a thread the last wait for the device before it. The wait of
    another thread counts where this thread did nothing: it waited for that thread."""
    ops, calls = trace.ops, trace.calls
    mine, here = ops.lane == lane, calls.lane == lane
    busy = merge(
        union(ops.ts[mine], ops.end[mine], sorted_=True),
        union(calls.ts[here], calls.end[here], sorted_=True),
    )
    idle = covered(busy, waits.end, waits.end + 1) == 0
    seen = np.flatnonzero((waits.lane == lane) | (idle & np.isin(waits.lane, lanes)))
    place = np.searchsorted(waits.end[seen], at, side="right") - 1
    return np.where(place >= 0, seen[np.maximum(place, 0)], -1) if len(seen) else place


def _walk(
    trace: Trace,
    links: Links,
    lanes: NDArray[np.int64],
    window: Window,
    begun: Starts,
    back: _Back,
    waits: HostWaits,
) -> _Walk:
    device = trace.device
    ends, final = device.end, -2
    here = np.flatnonzero(device.ts < window.end_ns)
    running = here[ends[here] >= window.end_ns]
    row = -1
    if len(running) or not len(lanes):
        # of several at work at the end the one that goes on longest decides
        last = running if len(running) else here
        row = int(last[np.argmax(ends[last])]) if len(last) else -1
    else:
        at = np.array([window.end_ns])
        final = int(_before(trace, lanes, waits, links.main_lane, at)[0])
        row = int(waits.row[final]) if final >= 0 else -1
    onward = np.where(begun.by == By.LAUNCH, back.row, begun.row)
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
    begun: Starts,
    back: _Back,
    waits: HostWaits,
    walk: _Walk,
) -> _Path:
    """Return the walk as spans that tile the window."""
    rows, low, high = walk.rows, window.start_ns, window.end_ns
    start, end = trace.device.ts[rows], np.minimum(trace.device.end[rows], high)
    by, at = begun.by[rows], np.minimum(begun.at[rows], start)
    # a node is left where the one it followed ended, or where this one began
    left = np.minimum(end, np.append(high, start[:-1])) if len(rows) else end
    below = np.append(left[1:], low) if len(rows) else left
    wait = back.wait[rows]
    floor = waits.end[np.maximum(wait, 0)] if len(waits.end) else wait
    floor = np.where(wait >= 0, floor, low)
    launched = by == By.LAUNCH
    sort = np.select(
        [by == By.STREAM, by == By.EVENT, launched], [_STREAM, _EVENT, _SYNC], _UNKNOWN
    )
    if walk.capped:
        sort[-1] = _UNWALKED
    tail = _tail(links, window, waits, walk, int(left[0]) if len(rows) else low)
    return _Path(
        _clipped(window, [(start, left, rows)]),
        _clipped(window, [(floor, at, begun.lane[rows], launched), tail[0]]),
        _clipped(
            window,
            [
                (at, start, np.full(len(rows), _LAUNCH), launched),
                (below, np.where(launched, floor, start), sort),
                tail[1],
            ],
        ),
    )


def _tail(
    links: Links, window: Window, waits: HostWaits, walk: _Walk, left: int
) -> tuple[tuple[NDArray[np.int64], ...], tuple[NDArray[np.int64], ...]]:
    """Return the host's work and the waiting from the last device operation of the path to the end
    of the window."""
    high = window.end_ns
    if walk.final == -2:
        return _one(high, high, -1), _one(left, high, _UNKNOWN)
    floor = int(waits.end[walk.final]) if walk.final >= 0 else window.start_ns
    return _one(floor, high, links.main_lane), _one(left, floor, _SYNC)


def _one(start: int, end: int, what: int) -> tuple[NDArray[np.int64], ...]:
    return tuple(np.array([value], np.int64) for value in (start, end, what))


def _clipped(window: Window, parts: list[tuple[NDArray[Any], ...]]) -> _Pieces:
    """One table of the parts' (start, end, what, and which rows, if not all), in the window."""
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
    names, at = np.unique(trace.device.name[pieces.what], return_inverse=True)
    return _summed([trace.text(int(n)) for n in names], at, pieces, "device")


def _wait_shares(pieces: _Pieces) -> list[PathShare]:
    return _summed(_WAITS, pieces.what, pieces, "wait")


def _summed(
    names: Sequence[str], at: NDArray[Any], pieces: _Pieces, side: Literal["device", "wait"]
) -> list[PathShare]:
    total = np.zeros(len(names), np.int64)
    np.add.at(total, at, pieces.end - pieces.start)
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
        mine = pieces.what == lane
        spans = union(pieces.start[mine], pieces.end[mine])
        for part in host_time(trace, links, lanes, lane, spans):
            ns, count = summed.get(part.name, (0, 0))
            summed[part.name] = (ns + part.ns, count + part.rows)
    return [
        PathShare(what=name, side="host", ns=ns, share=0.0, count=count)
        for name, (ns, count) in summed.items()
    ]


def _trust(trace: Trace, walk: _Walk, begun: Starts) -> Trust:
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
    lost = int((begun.lane[rows] < 0).sum())
    if lost:
        why.append(f"{lost} of {len(rows)} operations on the path have no launch in the trace")
    guessed = int(begun.guessed[rows].sum())
    if guessed:
        why.append(
            f"{guessed} waits between streams are inferred from times: the trace has no records"
        )
    doubtful = bool(guessed) or lost > 0.05 * len(rows)
    return Trust(confidence="doubtful" if doubtful else "good", why="; ".join(why))


PYTHON = "Python / no operator"


class Part(NamedTuple):
    name: str
    ns: int
    rows: int
    """Operators with that name that had a part in it."""


def host_time(
    trace: Trace, links: Links, lanes: NDArray[np.int64], lane: int, spans: Spans
) -> list[Part]:
    """Split the spans, which belong to `lane`; where it did nothing, another driving thread may
    have (the backward's, while the main one waits). The parts add up."""
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
    return [*parts, Part(PYTHON, left.total, len(left))] if len(left) else parts


def _layers(trace: Trace, links: Links, lanes: NDArray[np.int64], lane: int) -> Iterator[Events]:
    """Yield the tables of what may hold a moment, the nearest first."""
    ops, calls, spans = trace.ops, trace.calls, trace.annotations
    # a launch is its operator's time; a call that waits, or outside operators, is its own
    alone = synchronising(trace, calls) | (links.call_op < 0)
    for one in [lane, *(other for other in lanes.tolist() if other != lane)]:
        yield calls.take(alone & (calls.lane == one))
        yield ops.take(ops.lane == one)
    steps = trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
    for one in dict.fromkeys([lane, links.main_lane]):
        yield spans.take(~steps & (spans.lane == one))


def _shares(
    layer: Events, row: NDArray[np.int64], ns: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """Return (name, ns, rows) for the pieces of events."""
    total = np.zeros(int(layer.name.max()) + 2, np.int64)  # the last: no name (-1)
    np.add.at(total, layer.name[row], ns)
    seen = np.zeros(len(layer), bool)
    seen[row[ns > 0]] = True
    count = np.zeros(len(total), np.int64)
    np.add.at(count, layer.name[seen], 1)
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

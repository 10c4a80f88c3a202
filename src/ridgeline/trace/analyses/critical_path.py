"""The critical path: the chain of work that decided when the window ended.

Walked backwards. A device operation started when the one before it on its stream ended, when one
it awaited on another stream did, or, launched late, some time after its launching call; from
there the host is followed back to the last call in which it waited for the device, and from that
call to the operation it waited for. Every moment of the window is on the path once.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import CriticalPath, PathShare, Window
from ridgeline.records.trust import Trust
from ridgeline.trace.analyses.dependencies import By, HostWaits, Starts, host_waits, starts
from ridgeline.trace.columns import Events
from ridgeline.trace.intervals import Spans, covered, merge, parents, subtract, union
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.view import driving_lanes, synchronising

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

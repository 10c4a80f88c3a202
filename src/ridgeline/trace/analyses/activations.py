"""Activations, and what stays: the allocators' events by phase, module and step.

The events name no address in our columns, so what a module keeps is how much more is allocated when
its forward ends than when it began, and what a step leaves behind is told by size: each step
allocates more blocks of that size than it frees.
"""

import re
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.step_work import ModuleMemory, SegmentCalls, StaysBehind, TraceMemory
from ridgeline.records.trace import Place, Window
from ridgeline.trace.analyses.module_paths import FRAME
from ridgeline.trace.analyses.phases import phase_spans
from ridgeline.trace.columns import Allocations, Frames
from ridgeline.trace.intervals import Spans, clip, covered, union
from ridgeline.trace.links import Links, enclosing, nested
from ridgeline.trace.places import Places, place_of
from ridgeline.trace.steps import Steps, steps_of
from ridgeline.trace.trace import Trace

MOST_MODULES = 50
MOST_SIZES = 5
_OPS = 3
_SEGMENT = re.compile(r"(cuda|hip)(Malloc|Free)$|(cu|hip)Mem(Create|Map|Unmap|Release|SetAccess)$")

Levels = NDArray[np.int64]


def activations(trace: Trace, links: Links, window: Window) -> TraceMemory | None:
    """None where the trace holds no allocations in the window (profile_memory=False)."""
    events = _of_one_device(trace, window)
    if events is None:
        return None
    told = bool((events.allocated >= 0).all())
    level = events.allocated if told else np.cumsum(events.bytes)
    every = steps_of(trace)  # levels need no window: three steps tell more than two
    marks = _inside(every, window)
    steps = max(len(marks), 1)
    phases = phase_spans(trace, links)
    calls = _modules(trace, window, phases["forward"], marks)
    inside = slice(*np.searchsorted(events.ts, [window.start_ns, window.end_ns]))
    kind, index = int(events.device_type[0]), int(events.device[0])
    name = f"cuda:{index}" if kind > 0 or (kind < 0 and index >= 0) else "cpu"
    backward = clip(phases["backward"], window.start_ns, window.end_ns)
    held = _before_backward(events, level, backward, marks)
    modules = _held(trace, events, level, calls, steps)
    nodes, run, unrun = _nodes(trace, links, window)
    if not run:
        outer = [m for m in modules if m.depth == 0]
        held = max((m.held_bytes / m.calls for m in outer), default=0.0)
    return TraceMemory(
        device=name,
        absolute=told and name != "cpu",
        step_ends_bytes=tuple(int(x) for x in _at(events, level, every.end)),
        step_allocated_bytes=_allocated(events, every),
        peak_bytes=int(level[inside].max()),
        reserved_bytes=int(events.reserved[inside].max()),
        segments=_segments(trace, links, window, steps),
        forward_bytes=held,
        modules=modules,
        stays=_stays(trace, links, events, every),
        nodes=nodes / steps,
        unrun_nodes=unrun / steps,
        backwards=run,
    )


def _of_one_device(trace: Trace, window: Window) -> Allocations | None:
    memory = trace.memory
    if not len(memory) or window.ns <= 0:
        return None
    key = memory.device_type.astype(np.int64) * (1 << 32) + memory.device
    here = (memory.ts >= window.start_ns) & (memory.ts < window.end_ns)
    sums = {
        int(one): int(np.abs(memory.bytes[here & (key == one)]).sum())
        for one in np.unique(key[here])
    }
    if not sums:
        return None
    # A GPU's memory is what is short, however much the host's allocator turns over.
    best = max(sums, key=lambda one: (one >> 32 != 0, sums[one]))
    return memory.take(np.flatnonzero(key == best))


def _inside(marks: Steps, window: Window) -> Steps:
    rows = (marks.start >= window.start_ns) & (marks.start < window.end_ns)
    return Steps(marks.number[rows], marks.start[rows], marks.end[rows])


def _at(events: Allocations, level: Levels, moments: NDArray[np.int64]) -> Levels:
    """The level at moments: after the last event before each."""
    rows = np.searchsorted(events.ts, moments, side="left") - 1
    first = int(level[0] - events.bytes[0])
    return np.where(rows >= 0, level[np.maximum(rows, 0)], first)


def _allocated(events: Allocations, marks: Steps) -> tuple[int, ...]:
    """Return the bytes that each step allocated, freed again or not."""
    total = np.concatenate([[0], np.cumsum(np.maximum(events.bytes, 0))])
    first, last = np.searchsorted(events.ts, [marks.start, marks.end])
    return tuple(int(one) for one in total[last] - total[first])


def _before_backward(events: Allocations, level: Levels, backward: Spans, marks: Steps) -> float:
    """The most a forward added before a backward began, over the lowest level since the end of the
    backward before, or since the step began."""
    most = 0
    for i, start in enumerate(backward.start.tolist()):
        since = int(backward.end[i - 1]) if i else int(events.ts[0])
        begun = marks.start[marks.start <= start]
        since = max(since, int(begun[-1])) if len(begun) else since
        first, last = np.searchsorted(events.ts, [since, start])
        if last > first:
            lowest = min(int(level[first:last].min()), int(level[first] - events.bytes[first]))
            most = max(most, int(level[last - 1]) - lowest)
    return float(most)


class _Calls(NamedTuple):
    """Calls of modules in the forward, in order of start."""

    frames: Frames
    depth: NDArray[np.int64]


def _modules(trace: Trace, window: Window, forward: Spans, marks: Steps) -> _Calls:
    """A second forward of checkpointing is the backward's, and not among them; nor is the rest of a
    step that began before the window, which is not among the steps they are divided by."""
    rows = trace.names_where(trace.frames.name, lambda name: name.startswith(FRAME))
    frames = trace.frames.take(np.flatnonzero(rows))
    above = nested(frames)
    depth = np.zeros(len(frames), np.int64)
    for i in np.flatnonzero(above >= 0).tolist():  # by start: the one above comes first
        depth[i] = depth[above[i]] + 1
    middle = (frames.ts + frames.end) // 2
    kept = (frames.ts >= window.start_ns) & (frames.end <= window.end_ns)
    kept &= covered(forward, middle, middle + 1) > 0
    if len(marks):
        kept &= covered(union(marks.start, marks.end), frames.ts, frames.ts + 1) > 0
    return _Calls(frames.take(kept), depth[kept])


def _held(
    trace: Trace, events: Allocations, level: Levels, calls: _Calls, steps: int
) -> tuple[ModuleMemory, ...]:
    frames, depth = calls
    if not len(frames):
        return ()
    grown = _at(events, level, frames.end) - _at(events, level, frames.ts)
    last = _last_block(events, frames)
    sums: dict[tuple[str, int], list[float]] = {}
    for i in range(len(frames)):
        kind = re.sub(r"_\d+$", "", trace.text(int(frames.name[i])).removeprefix(FRAME).strip())
        row = sums.setdefault((kind, int(depth[i])), [0.0, 0.0, 0.0])
        row[0] += 1
        row[1] += float(grown[i])
        row[2] += float(min(last[i], max(grown[i], 0)))
    found = [
        ModuleMemory(kind=kind, depth=deep, calls=calls / steps, held_bytes=held / steps,
                     last_bytes=result / steps)
        for (kind, deep), (calls, held, result) in sums.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda m: (-m.held_bytes, m.depth)))[:MOST_MODULES]


def _last_block(events: Allocations, frames: Frames) -> Levels:
    """The size of the last block allocated in each call; 0 where none was."""
    rows = np.flatnonzero(events.bytes > 0)
    if not len(rows):
        return np.zeros(len(frames), np.int64)
    first = np.searchsorted(events.ts[rows], frames.ts)
    end = np.searchsorted(events.ts[rows], frames.end)
    return np.where(end > first, events.bytes[rows[np.maximum(end - 1, 0)]], 0)


def _nodes(trace: Trace, links: Links, window: Window) -> tuple[float, bool, float]:
    """Autograd nodes made in the window, whether any were run, and how many of those made were not.
    torch numbers nodes as it makes them, and an operator called with gradients on carries the
    number that is next."""
    ops = trace.ops
    named = trace.names_where(ops.name, lambda name: "Backward" in name)
    here = (ops.ts >= window.start_ns) & (ops.ts < window.end_ns)
    made = here & (ops.sequence >= 0) & (ops.forward_thread <= 0) & ~named
    numbers = ops.sequence[made & (ops.lane == links.main_lane)]
    ran = here & ((ops.forward_thread > 0) | named)
    if not len(numbers):
        return 0.0, bool(ran.any()), 0.0
    low, high = int(numbers.min()), int(numbers.max())
    run = np.unique(ops.sequence[ran])
    run = run[(run >= low) & (run < high)]
    return float(high - low), bool(ran.any()), float(high - low - len(run))


def _segments(trace: Trace, links: Links, window: Window, steps: int) -> SegmentCalls:
    """Calls by which the allocator gets memory from the driver, or gives it back."""
    calls = trace.calls
    here = (calls.ts >= window.start_ns) & (calls.ts < window.end_ns)
    named = trace.names_where(calls.name, lambda name: _SEGMENT.match(name) is not None)
    found = calls.take(np.flatnonzero(here & named))
    if not len(found):
        return SegmentCalls()
    places = Places(trace, links)
    codes = places.at(found.lane.astype(np.int64), found.ts)
    spent: Counter[int] = Counter()
    for code, dur in zip(codes.tolist(), found.dur.tolist(), strict=True):
        if code != -1:
            spent[code] += dur
    best = spent.most_common(1)
    return SegmentCalls(
        calls=len(found) / steps,
        host_ns=float(found.dur.sum()) / steps,
        place=place_of(places.text(best[0][0])) if best else None,
    )


def _stays(
    trace: Trace, links: Links, events: Allocations, marks: Steps
) -> tuple[StaysBehind, ...]:
    """Over the steps after the first, which frees blocks that are older than the trace."""
    if len(marks) < 3:
        return ()
    first, last = np.searchsorted(events.ts, [marks.end[0], marks.end[-1]])
    rows = np.arange(first, last)
    sizes, which = np.unique(np.abs(events.bytes[rows]), return_inverse=True)
    net = np.zeros(len(sizes), np.int64)
    np.add.at(net, which, np.sign(events.bytes[rows]))
    steps = len(marks) - 1
    order = np.argsort(-(net * sizes), kind="stable")[:MOST_SIZES]
    found = []
    for i in order.tolist():
        if net[i] < steps:  # less than one a step: nothing that goes on
            break
        mine = rows[(which == i) & (events.bytes[rows] > 0)]
        found.append(
            StaysBehind(
                block_bytes=int(sizes[i]),
                blocks=float(net[i]) / steps,
                ops=_operators(trace, links, events.take(mine)),
                place=_one_place(trace, links, events.take(mine)),
            )
        )
    return tuple(found)


def _operators(trace: Trace, links: Links, allocations: Allocations) -> tuple[str, ...]:
    around = enclosing(allocations, trace.ops, links.op_parent)
    names = [trace.text(int(trace.ops.name[row])) for row in around if row >= 0]
    return tuple(name for name, _ in Counter(names).most_common(_OPS))


def _one_place(trace: Trace, links: Links, allocations: Allocations) -> Place | None:
    places = Places(trace, links)
    codes = np.unique(places.at(allocations.lane.astype(np.int64), allocations.ts))
    codes = codes[codes != -1]
    return place_of(places.text(int(codes[0]))) if len(codes) == 1 else None

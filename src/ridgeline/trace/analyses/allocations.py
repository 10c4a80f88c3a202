"""Memory from the events of the allocators: a curve over the window for each device, what modules
keep for the backward, and which blocks stay allocated from step to step."""

import re
from collections import Counter
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.step_work import ModuleMemory, SegmentCalls, StaysBehind, TraceMemory
from ridgeline.records.trace import MemoryCurve, Place, Window
from ridgeline.trace.analyses.modules import FRAME
from ridgeline.trace.analyses.phases import is_optimizer, phase_spans
from ridgeline.trace.columns import Allocations, Events, Frames
from ridgeline.trace.host_states import is_input
from ridgeline.trace.intervals import Spans, clip, covered, union
from ridgeline.trace.links import Links, enclosing, nested, sums_by
from ridgeline.trace.places import user_places
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import Steps, steps_of

_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 17: "hpu", 20: "device"}
"""torch's DeviceType; ROCm's torch calls its devices cuda as well."""

_UNKNOWN_BEFORE = (
    "relative to the start of the recording: the trace does not say what was allocated before"
)
_CPU_BEFORE = "counts what torch's CPU allocator gave out since recording began"


def memory_curves(trace: Trace, window: Window, points: int = 2000) -> tuple[MemoryCurve, ...]:
    """Return a curve of at most `points` points for each device with an event in the window, the
    largest peak first."""
    memory = trace.memory
    if not len(memory) or window.ns <= 0:
        return ()
    key = memory.device_type.astype(np.int64) * (1 << 32) + memory.device
    curves = []
    for device in np.unique(key):
        rows = np.flatnonzero(key == device)
        curve = _curve(trace, memory.take(rows), window, max(points, 8))
        if curve is not None:
            curves.append(curve)
    return tuple(sorted(curves, key=lambda c: (c.device == "cpu", -c.peak_bytes)))


def _curve(trace: Trace, events: Allocations, window: Window, points: int) -> MemoryCurve | None:
    first, last = np.searchsorted(events.ts, [window.start_ns, window.end_ns])
    if first == last:
        return None
    device = _device_name(int(events.device_type[0]), int(events.device[0]))
    has_totals = bool((events.allocated >= 0).all())
    level = events.allocated if has_totals else np.cumsum(events.bytes)
    start = int(level[first] - events.bytes[first])
    at, level, reserved = events.ts[first:last], level[first:last], events.reserved[first:last]
    # one point before the first event and one at the end, so that the curve spans the window
    at = np.concatenate([[window.start_ns], at, [window.end_ns]])
    level = np.concatenate([[start], level, level[-1:]])
    reserved = np.concatenate([reserved[:1], reserved, reserved[-1:]])
    peak = int(level.argmax())
    lanes = events.lane[first:last]
    inside = 0 < peak <= len(lanes)  # before the first event, the operator is unknown
    peak_moment = moment(trace, int(at[peak]), int(lanes[peak - 1])) if inside else Moment()
    rows = _rows_to_keep(at, level, reserved, window, points)
    note = _UNKNOWN_BEFORE if not has_totals else _CPU_BEFORE if device == "cpu" else ""
    return MemoryCurve(
        device=device,
        points=tuple(
            zip(at[rows].tolist(), level[rows].tolist(), reserved[rows].tolist(), strict=True)
        ),
        peak_bytes=int(level[peak]),
        peak_ns=int(at[peak]),
        peak_step=steps_of(trace).at(int(at[peak])),
        peak_phase=peak_moment.phase,
        peak_op=peak_moment.op,
        peak_module=peak_moment.module,
        start_bytes=start,
        end_bytes=int(level[-1]),
        reserved_peak_bytes=int(reserved.max()),
        events=int(last - first),
        note=note,
    )


def _rows_to_keep(
    at: NDArray[np.int64],
    level: NDArray[np.int64],
    reserved: NDArray[np.int64],
    window: Window,
    points: int,
) -> NDArray[np.int64]:
    """Return the rows to keep: both ends, the highest reserve, and the lowest and the highest row
    of each of equally long stretches of time."""
    if len(at) <= points:
        return np.arange(len(at))
    stretches = (points - 4) // 2
    # in floats: damaged times must not overflow, and only the bound matters here
    part = (at - window.start_ns) / window.ns
    stretch = (np.clip(part, 0, 1) * stretches).astype(np.int64)
    order = np.lexsort((level, stretch))
    cuts = np.flatnonzero(np.diff(stretch[order])) + 1
    lowest = order[np.append(0, cuts)]
    highest = order[np.append(cuts, len(order)) - 1]
    ends = [0, len(at) - 1, int(level.argmax()), int(reserved.argmax())]
    return np.unique(np.concatenate([lowest, highest, ends]))


def _device_name(kind: int, index: int) -> str:
    if kind == 0 or (kind < 0 and index < 0):
        return "cpu"
    name = _TYPES.get(kind, "cuda" if kind < 0 else f"device type {kind}")
    return f"{name}:{index}" if index >= 0 else name


_MODULE = "nn.Module: "
_AUTOGRAD_ENGINE = "autograd::engine"
_BACKWARD = re.compile(r"autograd::engine|\w+Backward\d*$")


class Moment(Struct, frozen=True, kw_only=True):
    phase: str = ""
    """"" where it is unknown: without marks, stacks or an autograd node around the moment."""
    op: str = ""
    """The outermost operator, which the program called; in the backward, the autograd node."""
    module: str = ""
    """The module path, such as GPT_0 / Block_3; known only with stacks, and not in the backward."""


def moment(trace: Trace, at: int, lane: int) -> Moment:
    """Return what one thread did at a moment. Other threads do not count: they may load the next
    batch meanwhile."""
    ops, frames = (
        _names_around(trace, trace.ops, at, lane),
        _names_around(trace, trace.frames, at, lane),
    )
    marks = [*_names_around(trace, trace.annotations, at, lane), *frames]
    modules = [name.removeprefix(_MODULE) for name in frames if name.startswith(_MODULE)]
    return Moment(
        phase=_phase(ops, marks, bool(modules)),
        op=next((name for name in ops if not name.startswith(_AUTOGRAD_ENGINE)), ""),
        module=" / ".join(modules),
    )


def _phase(ops: list[str], marks: list[str], in_module: bool) -> str:
    if any(is_optimizer(name) for name in marks):
        return "optimizer"
    if any(is_input(name) for name in marks):
        return "input"
    if any(_BACKWARD.match(name) for name in ops):
        return "backward"
    return "forward" if in_module else ""


def _names_around(trace: Trace, table: Events, at: int, lane: int) -> list[str]:
    """Return the names of the events around a moment, the outermost first."""
    rows = np.flatnonzero((table.lane == lane) & (table.ts <= at) & (at < table.end))
    return [trace.text(int(table.name[row])) for row in rows[np.argsort(table.ts[rows])]]


MAX_MODULES = 50
MAX_SIZES = 5
_MAX_OPERATORS = 3
_SEGMENT = re.compile(r"(cuda|hip)(Malloc|Free)$|(cu|hip)Mem(Create|Map|Unmap|Release|SetAccess)$")

Levels = NDArray[np.int64]


def activations(trace: Trace, links: Links, window: Window) -> TraceMemory | None:
    """Return the memory of the steps, of the forward and of the modules; None if the trace has no
    allocations in the window (profile_memory=False)."""
    events = _main_device_events(trace, window)
    if events is None:
        return None
    has_totals = bool((events.allocated >= 0).all())
    level = events.allocated if has_totals else np.cumsum(events.bytes)
    steps_marked = steps_of(trace)  # all steps, also those outside the window, show growth
    marks = _steps_inside(steps_marked, window)
    steps = max(len(marks), 1)
    phases = phase_spans(trace, links)
    calls = _modules(trace, window, phases["forward"], marks)
    inside = slice(*np.searchsorted(events.ts, [window.start_ns, window.end_ns]))
    kind, index = int(events.device_type[0]), int(events.device[0])
    name = f"cuda:{index}" if kind > 0 or (kind < 0 and index >= 0) else "cpu"
    backward = clip(phases["backward"], window.start_ns, window.end_ns)
    forward_bytes = _before_backward(events, level, backward, marks)
    modules = _memory_by_module(trace, events, level, calls, steps)
    nodes, run, unrun = _nodes(trace, links, window)
    if not run:
        outer = [m for m in modules if m.depth == 0]
        forward_bytes = max((m.held_bytes / m.calls for m in outer), default=0.0)
    return TraceMemory(
        device=name,
        absolute=has_totals and name != "cpu",
        step_ends_bytes=tuple(int(x) for x in _level_at(events, level, steps_marked.end)),
        step_allocated_bytes=_allocated(events, steps_marked),
        peak_bytes=int(level[inside].max()),
        reserved_bytes=int(events.reserved[inside].max()),
        segments=_segments(trace, links, window, steps),
        forward_bytes=forward_bytes,
        modules=modules,
        stays=_blocks_that_stay(trace, links, events, steps_marked),
        nodes=nodes / steps,
        unrun_nodes=unrun / steps,
        backwards=run,
    )


def _main_device_events(trace: Trace, window: Window) -> Allocations | None:
    memory = trace.memory
    if not len(memory) or window.ns <= 0:
        return None
    key = memory.device_type.astype(np.int64) * (1 << 32) + memory.device
    in_window = (memory.ts >= window.start_ns) & (memory.ts < window.end_ns)
    sums = {
        int(device): int(np.abs(memory.bytes[in_window & (key == device)]).sum())
        for device in np.unique(key[in_window])
    }
    if not sums:
        return None
    # Memory of a GPU is scarcer than that of the host, so a GPU comes first.
    best = max(sums, key=lambda device: (device >> 32 != 0, sums[device]))
    return memory.take(np.flatnonzero(key == best))


def _steps_inside(marks: Steps, window: Window) -> Steps:
    rows = (marks.start >= window.start_ns) & (marks.start < window.end_ns)
    return marks.take(rows)


def _level_at(events: Allocations, level: Levels, moments: NDArray[np.int64]) -> Levels:
    """Return the level at each moment: the level after the last event before it."""
    rows = np.searchsorted(events.ts, moments, side="left") - 1
    first = int(level[0] - events.bytes[0])
    return np.where(rows >= 0, level[np.maximum(rows, 0)], first)


def _allocated(events: Allocations, marks: Steps) -> tuple[int, ...]:
    """Return the bytes that each step allocated, freed again or not."""
    total = np.concatenate([[0], np.cumsum(np.maximum(events.bytes, 0))])
    first, last = np.searchsorted(events.ts, [marks.start, marks.end])
    return tuple(int(bytes_allocated) for bytes_allocated in total[last] - total[first])


def _before_backward(events: Allocations, level: Levels, backward: Spans, marks: Steps) -> float:
    """Return the most that a forward added before its backward began, over the lowest level since
    the end of the backward before it, or since the step began."""
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
    """Return the forwards of modules. A second forward of checkpointing belongs to the backward and
    is left out. So is the rest of a step that began before the window: the figures are divided by
    the steps inside it."""
    rows = trace.names_where(trace.frames.name, lambda name: name.startswith(FRAME))
    frames = trace.frames.take(np.flatnonzero(rows))
    above = nested(frames)
    depth = np.zeros(len(frames), np.int64)
    for i in np.flatnonzero(above >= 0).tolist():  # by start: the one above comes first
        depth[i] = depth[above[i]] + 1
    middle = (frames.ts + frames.end) // 2
    counts = (frames.ts >= window.start_ns) & (frames.end <= window.end_ns)
    counts &= covered(forward, middle, middle + 1) > 0
    if len(marks):
        counts &= covered(union(marks.start, marks.end), frames.ts, frames.ts + 1) > 0
    return _Calls(frames.take(counts), depth[counts])


def _memory_by_module(
    trace: Trace, events: Allocations, level: Levels, calls: _Calls, steps: int
) -> tuple[ModuleMemory, ...]:
    frames, depth = calls
    if not len(frames):
        return ()
    grown = _level_at(events, level, frames.end) - _level_at(events, level, frames.ts)
    last = _last_block(events, frames)
    sums: dict[tuple[str, int], list[float]] = {}
    for i in range(len(frames)):
        kind = re.sub(r"_\d+$", "", trace.text(int(frames.name[i])).removeprefix(FRAME).strip())
        row = sums.setdefault((kind, int(depth[i])), [0.0, 0.0, 0.0])
        row[0] += 1
        row[1] += float(grown[i])
        row[2] += float(min(last[i], max(grown[i], 0)))
    rows_found = [
        ModuleMemory(kind=kind, depth=deep, calls=calls / steps, held_bytes=kept_bytes / steps,
                     last_bytes=result / steps)
        for (kind, deep), (calls, kept_bytes, result) in sums.items()
    ]  # fmt: skip
    return tuple(sorted(rows_found, key=lambda m: (-m.held_bytes, m.depth)))[:MAX_MODULES]


def _last_block(events: Allocations, frames: Frames) -> Levels:
    """Return the size of the last block that each call allocated; 0 where it allocated none."""
    rows = np.flatnonzero(events.bytes > 0)
    if not len(rows):
        return np.zeros(len(frames), np.int64)
    first = np.searchsorted(events.ts[rows], frames.ts)
    end = np.searchsorted(events.ts[rows], frames.end)
    return np.where(end > first, events.bytes[rows[np.maximum(end - 1, 0)]], 0)


def _nodes(trace: Trace, links: Links, window: Window) -> tuple[float, bool, float]:
    """Return how many autograd nodes were made in the window, whether any ran, and how many of
    those made did not run. torch numbers nodes as it makes them; an operator that is called with
    gradients on carries the next number."""
    ops = trace.ops
    named = trace.names_where(ops.name, lambda name: "Backward" in name)
    in_window = (ops.ts >= window.start_ns) & (ops.ts < window.end_ns)
    made = in_window & (ops.sequence >= 0) & (ops.forward_thread <= 0) & ~named
    numbers = ops.sequence[made & (ops.lane == links.main_lane)]
    ran = in_window & ((ops.forward_thread > 0) | named)
    if not len(numbers):
        return 0.0, bool(ran.any()), 0.0
    low, high = int(numbers.min()), int(numbers.max())
    run = np.unique(ops.sequence[ran])
    run = run[(run >= low) & (run < high)]
    return float(high - low), bool(ran.any()), float(high - low - len(run))


def _segments(trace: Trace, links: Links, window: Window, steps: int) -> SegmentCalls:
    """Return the calls by which the allocator gets memory from the driver or gives it back."""
    calls = trace.calls
    in_window = (calls.ts >= window.start_ns) & (calls.ts < window.end_ns)
    named = trace.names_where(calls.name, lambda name: _SEGMENT.match(name) is not None)
    segment_calls = calls.take(np.flatnonzero(in_window & named))
    if not len(segment_calls):
        return SegmentCalls()
    places = user_places(trace, links)
    codes = places.at(segment_calls.lane.astype(np.int64), segment_calls.ts)
    spent: Counter[int] = Counter()
    for code, dur in zip(codes.tolist(), segment_calls.dur.tolist(), strict=True):
        if code != -1:
            spent[code] += dur
    best = spent.most_common(1)
    return SegmentCalls(
        calls=len(segment_calls) / steps,
        host_ns=float(segment_calls.dur.sum()) / steps,
        place=places.place(best[0][0]) if best else None,
    )


def _blocks_that_stay(
    trace: Trace, links: Links, events: Allocations, marks: Steps
) -> tuple[StaysBehind, ...]:
    """Return the blocks that stay allocated, by size. The first step does not count, because it
    frees blocks that are older than the trace."""
    if len(marks) < 3:
        return ()
    first, last = np.searchsorted(events.ts, [marks.end[0], marks.end[-1]])
    rows = np.arange(first, last)
    sizes, which = np.unique(np.abs(events.bytes[rows]), return_inverse=True)
    net = sums_by(which, np.sign(events.bytes[rows]), len(sizes))
    steps = len(marks) - 1
    growing = np.flatnonzero(net >= steps)  # less than one block in each step is no growth
    order = growing[np.argsort(-(net * sizes)[growing], kind="stable")][:MAX_SIZES]
    blocks = []
    for i in order.tolist():
        allocating = rows[(which == i) & (events.bytes[rows] > 0)]
        blocks.append(
            StaysBehind(
                block_bytes=int(sizes[i]),
                blocks=float(net[i]) / steps,
                ops=_operators(trace, links, events.take(allocating)),
                place=_common_place(trace, links, events.take(allocating)),
            )
        )
    return tuple(blocks)


def _operators(trace: Trace, links: Links, allocations: Allocations) -> tuple[str, ...]:
    around = enclosing(allocations, trace.ops, links.op_parent)
    names = [trace.text(int(trace.ops.name[row])) for row in around if row >= 0]
    return tuple(name for name, _ in Counter(names).most_common(_MAX_OPERATORS))


def _common_place(trace: Trace, links: Links, allocations: Allocations) -> Place | None:
    places = user_places(trace, links)
    codes = np.unique(places.at(allocations.lane.astype(np.int64), allocations.ts))
    codes = codes[codes != -1]
    return places.place(int(codes[0])) if len(codes) == 1 else None

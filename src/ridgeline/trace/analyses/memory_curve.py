"""Memory over the window, one curve a device, from the allocators' own events."""

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import MemoryCurve, Window
from ridgeline.trace.analyses.peak_moment import Moment, moment
from ridgeline.trace.columns import Allocations
from ridgeline.trace.trace import Trace

_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 17: "hpu", 20: "device"}
"""torch's DeviceType; ROCm's torch calls its devices cuda as well."""

_UNKNOWN_BEFORE = (
    "relative to the start of the recording: the trace does not say what was allocated before"
)
_CPU_BEFORE = "counts what torch's CPU allocator gave out since recording began"


def memory_curves(trace: Trace, window: Window, points: int = 2000) -> tuple[MemoryCurve, ...]:
    """Devices with an event in the window, the largest peak first; at most `points` points each."""
    memory = trace.memory
    if not len(memory) or window.ns <= 0:
        return ()
    key = memory.device_type.astype(np.int64) * (1 << 32) + memory.device
    curves = []
    for one in np.unique(key):
        rows = np.flatnonzero(key == one)
        curve = _curve(trace, memory.take(rows), window, max(points, 8))
        if curve is not None:
            curves.append(curve)
    return tuple(sorted(curves, key=lambda c: (c.device == "cpu", -c.peak_bytes)))


def _curve(trace: Trace, events: Allocations, window: Window, points: int) -> MemoryCurve | None:
    first, last = np.searchsorted(events.ts, [window.start_ns, window.end_ns])
    if first == last:
        return None
    device = _device(int(events.device_type[0]), int(events.device[0]))
    told = bool((events.allocated >= 0).all())
    level = events.allocated if told else np.cumsum(events.bytes)
    start = int(level[first] - events.bytes[first])
    at, level, reserved = events.ts[first:last], level[first:last], events.reserved[first:last]
    # one point before the first event and one at the end, so that the curve spans the window
    at = np.concatenate([[window.start_ns], at, [window.end_ns]])
    level = np.concatenate([[start], level, level[-1:]])
    reserved = np.concatenate([reserved[:1], reserved, reserved[-1:]])
    peak = int(level.argmax())
    lanes = events.lane[first:last]
    inside = 0 < peak <= len(lanes)  # else before the first event: nobody knows what was done then
    doing = moment(trace, int(at[peak]), int(lanes[peak - 1])) if inside else Moment()
    kept = _thin(at, level, reserved, window, points)
    note = _UNKNOWN_BEFORE if not told else _CPU_BEFORE if device == "cpu" else ""
    return MemoryCurve(
        device=device,
        points=tuple(
            zip(at[kept].tolist(), level[kept].tolist(), reserved[kept].tolist(), strict=True)
        ),
        peak_bytes=int(level[peak]),
        peak_ns=int(at[peak]),
        peak_step=_step(trace, int(at[peak])),
        peak_phase=doing.phase,
        peak_op=doing.op,
        peak_module=doing.module,
        start_bytes=start,
        end_bytes=int(level[-1]),
        reserved_peak_bytes=int(reserved.max()),
        events=int(last - first),
        note=note,
    )


def _thin(
    at: NDArray[np.int64],
    level: NDArray[np.int64],
    reserved: NDArray[np.int64],
    window: Window,
    points: int,
) -> NDArray[np.int64]:
    """Rows to keep: the lowest and the highest of each of equal stretches of time, both ends, and
    the highest reserve."""
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


def _device(kind: int, index: int) -> str:
    if kind == 0 or (kind < 0 and index < 0):
        return "cpu"
    name = _TYPES.get(kind, "cuda" if kind < 0 else f"device type {kind}")
    return f"{name}:{index}" if index >= 0 else name


def _step(trace: Trace, at: int) -> str:
    """The step mark around a moment."""
    spans = trace.annotations
    marks = trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
    around = np.flatnonzero(marks & (spans.ts <= at) & (at < spans.end))
    return trace.text(int(spans.name[around[-1]])) if len(around) else ""

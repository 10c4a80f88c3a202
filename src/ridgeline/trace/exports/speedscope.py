"""A trace as a speedscope profile: a flame chart a host thread and a device stream.

Evented profiles of nested spans, in nanoseconds from the start of the trace (a file's own times can
be beyond what a JavaScript number holds exactly). Bounded: of a row with more than `MAX_SPANS`
spans the shortest are left out, and its name says how many.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import TraceStudy
from ridgeline.trace.columns import Events
from ridgeline.trace.intervals import Times
from ridgeline.trace.places import place_of
from ridgeline.trace.trace import Trace

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
MAX_SPANS = 100_000
"""A span is two events; speedscope opens 200,000 events in a second or two."""
MAX_PROFILES = 64

Row = tuple[str, Times, Times, NDArray[np.int32]]
"""A row of the timeline: its name, starts, ends, name codes."""


def speedscope(trace: Trace, study: TraceStudy) -> dict[str, Any]:
    rows = sorted([*_threads(trace), *_streams(trace)], key=lambda row: -len(row[1]))
    starts = [int(row[1].min()) for row in rows]
    origin = min(starts, default=0)
    frames = _Frames(trace)
    profiles = [_profile(row, origin, frames) for row in rows[:MAX_PROFILES]]
    return {
        "$schema": SCHEMA,
        "shared": {"frames": frames.listed},
        "profiles": profiles,
        "name": _valid(study.label or trace.label),
        "activeProfileIndex": 0,
        "exporter": "ridgeline",
    }


class _Frames:
    """Each distinct name once, with its file and line where it is a Python function's."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._known: dict[int, int] = {}
        self.listed: list[dict[str, Any]] = []

    def index(self, code: int) -> int:
        if code not in self._known:
            self._known[code] = len(self.listed)
            self.listed.append(self._frame(self._trace.text(code)))
        return self._known[code]

    def _frame(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {"name": _valid(name)}
        told = place_of(name)
        if told is not None:
            found |= {"file": _valid(told.file), "line": told.line}
        return found


def _threads(trace: Trace) -> Iterator[Row]:
    """Yield the Python functions, named spans, operators and runtime calls of each host thread."""
    tables: tuple[Events, ...] = (trace.frames, trace.annotations, trace.ops, trace.calls)
    for lane in np.unique(np.concatenate([t.lane for t in tables])):
        picked = [t.take(t.lane == lane) for t in tables]
        found = trace.lanes[int(lane)]
        name = f"{found.process} {found.thread or f'thread {found.tid}'}".strip()
        yield (
            name,
            np.concatenate([t.ts for t in picked]),
            np.concatenate([t.end for t in picked]),
            np.concatenate([t.name for t in picked]),
        )


def _streams(trace: Trace) -> Iterator[Row]:
    table = trace.device
    pairs = table.device.astype(np.int64) * 2**32 + table.stream
    for pair in np.unique(pairs):
        ours = table.take(pairs == pair)
        name = f"device {int(ours.device[0])} stream {int(ours.stream[0])}"
        yield name, ours.ts, ours.end, ours.name


def _profile(row: Row, origin: int, frames: _Frames) -> dict[str, Any]:
    name, start, end, code = row
    left_out = max(len(start) - MAX_SPANS, 0)
    if left_out:
        kept = np.argpartition(start - end, MAX_SPANS)[:MAX_SPANS]
        start, end, code = start[kept], end[kept], code[kept]
        name = f"{name} (without its {left_out:,} shortest spans)"
    order = np.lexsort((start - end, start))
    events = list(_events(start[order] - origin, end[order] - origin, code[order], frames))
    return {
        "type": "evented",
        "name": _valid(name),
        "unit": "nanoseconds",
        "startValue": int(start.min()) - origin,
        "endValue": int(end.max()) - origin,
        "events": events,
    }


def _events(
    start: Times, end: Times, code: NDArray[np.int32], frames: _Frames
) -> Iterator[dict[str, Any]]:
    """Return properly nested openings and closings, the only form that the format allows. A span
    that outlives the span around it ends with that span; traces have a few, by rounding."""
    stack: list[tuple[int, int]] = []
    for at, until, name in zip(start.tolist(), end.tolist(), code.tolist(), strict=True):
        while stack and stack[-1][0] <= at:
            closed = stack.pop()
            yield {"type": "C", "frame": closed[1], "at": closed[0]}
        frame = frames.index(name)
        stack.append((max(min(until, stack[-1][0]) if stack else until, at), frame))
        yield {"type": "O", "frame": frame, "at": at}
    while stack:
        closed = stack.pop()
        yield {"type": "C", "frame": closed[1], "at": closed[0]}


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()

"""Lines at which the host waits for the device: calls a step, and how long they hold it.

One operator's calls are one wait: `.item()` copies a number and then synchronises. Waits of the
profiler, and of what profiles here, are not the program's: those outside the marked steps, and
those asked for by a function of theirs.
"""

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.run_summary import SyncPoint
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.driving import driving_lanes
from ridgeline.trace.analyses.step_counts import started, step_spans
from ridgeline.trace.columns import Calls
from ridgeline.trace.host_names import BLOCKING_OPS, COPY_OPS, is_copy_call, is_sync_call
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links, Rows, enclosing
from ridgeline.trace.places import Places, place_of
from ridgeline.trace.trace import Trace

MOST = 20
_SAID = BLOCKING_OPS | COPY_OPS | {"aten::unique_dim", "aten::bincount", "aten::pin_memory"}
"""Operators people know the wait by; those around them inside a call are named after these."""
_UNPINNED = re.compile("Pageable", re.IGNORECASE)
_BACK = re.compile("Device -> Pageable", re.IGNORECASE)
"""Such a copy to the host returns when it is done, whatever the call's name says."""
_PASSED_OVER = re.compile(r"^<built-in|^torch[/\\]cuda[/\\]|[/\\]torch[/\\]cuda[/\\]")
"""The ways to ask for a wait, which anybody may call."""
_NOT_THE_PROGRAMS = re.compile(
    r"(^|[/\\])ridgeline[/\\]|(^|[/\\])torch[/\\](profiler[/\\]|autograd[/\\]profiler)"
)


class Waits(Struct, frozen=True):
    calls: Calls
    row: Rows
    """Of each in `trace.calls`."""
    op: Rows
    """The operator each is named after; -1: none around it."""


def sync_points(trace: Trace, links: Links, window: Window) -> tuple[SyncPoint, ...]:
    """The costliest first; () where the trace has no device."""
    waits = program_waits(trace, links, window)
    if not len(waits.calls):
        return ()
    places = _places(trace, links, waits.calls)
    steps = max(window.steps, 1)
    seen: dict[tuple[str, str], tuple[set[int], list[int]]] = {}
    for row, place in enumerate(places):
        op = int(waits.op[row])
        name = trace.ops.name[op] if op >= 0 else waits.calls.name[row]
        instances, spent = seen.setdefault((place, trace.text(int(name))), (set(), []))
        instances.add(op if op >= 0 else -1 - row)
        spent.append(int(waits.calls.dur[row]))
    points = [
        SyncPoint(
            place=place,
            call=call,
            per_step=len(instances) / steps,
            ms_per_step=sum(spent) / 1e6 / steps,
        )
        for (place, call), (instances, spent) in seen.items()
    ]
    return tuple(sorted(points, key=lambda point: -point.ms_per_step)[:MOST])


def program_waits(trace: Trace, links: Links, window: Window, *, staged: bool = False) -> Waits:
    """Calls in which the program waits for the device; `staged`: and all that copy memory which is
    not pinned to it, which hold the host until the driver has read it."""
    calls = trace.calls
    copies = _pageable(trace, links, _UNPINNED)
    sync = trace.names_where(calls.name, is_sync_call) | _pageable(trace, links, _BACK)
    here = (sync | copies) & started(calls, step_spans(trace, window))
    # a thread that pins batches or watches collectives waits beside the program
    here &= np.isin(calls.lane, driving_lanes(trace, links))
    found, sync = calls.take(here), sync[here]
    op = _named_after(trace, links, enclosing(found, trace.ops, links.op_parent))
    # a copy to the device holds the host while it is read; alone it is no wait for the device
    held = (sync | np.isin(op, op[sync & (op >= 0)]) | staged) & ~by_profiler(trace, links, found)
    return Waits(found.take(held), np.flatnonzero(here)[held], op[held])


def _pageable(trace: Trace, links: Links, which: re.Pattern[str]) -> NDArray[np.bool_]:
    """Calls for copies of one sort in which host memory is not pinned."""
    device = trace.device
    copies = (device.kind == Kind.MEMCPY) & trace.names_where(
        device.name, lambda name: which.search(name) is not None
    )
    rows = links.device_call[copies]
    waits = np.zeros(len(trace.calls), bool)
    waits[rows[rows >= 0]] = True
    return np.asarray(waits & trace.names_where(trace.calls.name, is_copy_call), bool)


def by_profiler(trace: Trace, links: Links, calls: Calls) -> NDArray[np.bool_]:
    """Whether the function that asked, past the ways to ask, is a profiler's."""
    frames = trace.frames
    if not len(frames):
        return np.zeros(len(calls), bool)
    above = links.frame_parent
    passed = trace.names_where(frames.name, lambda name: _PASSED_OVER.search(name) is not None)
    theirs = trace.names_where(frames.name, lambda name: _NOT_THE_PROGRAMS.search(name) is not None)
    at = enclosing(calls, frames, above)
    while (on := (at >= 0) & passed[np.maximum(at, 0)]).any():
        at = np.where(on, above[np.maximum(at, 0)], at)
    return np.asarray((at >= 0) & theirs[np.maximum(at, 0)], bool)


def _named_after(trace: Trace, links: Links, op: Rows) -> Rows:
    """The outermost of the known waiting operators around each, else the innermost operator."""
    if not len(trace.ops):
        return op
    said = trace.names_where(trace.ops.name, _SAID.__contains__)
    found, here = op.copy(), op
    while (on := here >= 0).any():
        found = np.where(on & said[np.maximum(here, 0)], here, found)
        here = np.where(on, links.op_parent[np.maximum(here, 0)], -1)
    return found


def _places(trace: Trace, links: Links, calls: Calls) -> list[str]:
    """The user's line of each; on a thread without Python, where the main one was."""
    places = Places(trace, links)
    where = places.at(calls.lane.astype(np.int64), calls.ts)
    lost = np.flatnonzero((where == -1) & (calls.lane != links.main_lane))
    where[lost] = places.at(np.full(len(lost), links.main_lane), calls.ts[lost])
    told = [place_of(places.text(int(code))) if code != -1 else None for code in where]
    return ["" if place is None else f"{place.file}:{place.line}" for place in told]

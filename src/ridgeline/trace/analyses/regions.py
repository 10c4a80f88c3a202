"""Graph launches, compiled regions, and the compiling itself.

A graph's kernels are launched by one call: no operator stands behind any of them, so by-operator
figures miss them, and the note says how many. Compiled regions nest (a region holds a function
holds a graph): each row counts all that was launched inside, and rows do not add up.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Region, Window
from ridgeline.trace.columns import Events
from ridgeline.trace.host_states import is_compiling, launched
from ridgeline.trace.intervals import clip, merge, union
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import rows_in

SHOWN = 50
"""Compiled regions listed, the longest first: a model may have thousands."""

_COMPILED = re.compile(
    r"Torch-Compiled Region|^CompiledFunction(Backward)?$|^## Call CompiledFxGraph|^Call Compiled"
)


class _Sent(NamedTuple):
    """Device operations of the window in order of lane and launch."""

    lane: NDArray[np.int64]
    moment: NDArray[np.int64]
    total: NDArray[np.int64]
    """Device time of all before; one longer than the others."""


def regions(trace: Trace, links: Links, window: Window) -> tuple[Region, ...]:
    sent = _sent(trace, links, window)
    return (
        *_graphs(trace, links, window),
        *_compiled(trace, window, sent),
        *_triton(trace, window),
        *_compilation(trace, window, sent),
    )


def _graphs(trace: Trace, links: Links, window: Window) -> list[Region]:
    """Return a row for each graph where kernels carry its id, else one for each launching
    function."""
    calls, device = trace.calls, trace.device
    launches = trace.names_where(calls.name, lambda name: name.endswith("GraphLaunch"))
    inside = np.zeros(len(device), bool)
    inside[rows_in(device, window)] = True
    call = links.device_call
    by_call = (call >= 0) & (launches[np.maximum(call, 0)] if len(calls) else False)
    graphed = np.flatnonzero(inside & (by_call | (device.graph > 0)))
    here = np.zeros(len(calls), bool)
    here[rows_in(calls, window)] = True
    hidden = np.setdiff1d(np.flatnonzero(launches & here), call[call >= 0])
    rows = []
    for graph in np.unique(device.graph[graphed]).tolist():
        mine = graphed[device.graph[graphed] == graph]
        own = np.unique(call[mine][by_call[mine]])
        name = trace.text(int(calls.name[own[0]])) if len(own) else "graph launch"
        rows.append(
            Region(
                kind="graph",
                name=f"graph {graph}" if graph > 0 else name,
                count=len(own),
                host_ns=int(calls.dur[own].sum()),
                device_ns=int(device.dur[mine].sum()),
                operations=len(mine),
                note=_graph_note(links, mine, by_call[mine]),
            )
        )
    if len(hidden):
        rows.append(
            Region(
                kind="graph",
                name=trace.text(int(calls.name[hidden[0]])),
                count=len(hidden),
                host_ns=int(calls.dur[hidden].sum()),
                device_ns=0,
                operations=0,
                note=f"{len(hidden)} launches have no device work in the trace: what they ran is "
                "not in sight, and idle time is overstated",
            )
        )
    return sorted(rows, key=lambda row: -row.device_ns)


def _graph_note(links: Links, rows: NDArray[np.int64], by_call: NDArray[np.bool_]) -> str:
    notes = []
    bare = int((links.device_op[rows] < 0).sum())
    if bare:
        notes.append(f"{bare} of {len(rows)} device operations have no launching operator at all")
    lost = int((~by_call).sum())
    if lost:
        notes.append(f"{lost} have no launching call in the trace")
    return "; ".join(notes)


def _sent(trace: Trace, links: Links, window: Window) -> _Sent:
    inside = rows_in(trace.device, window)
    moment, lane = launched(trace, links)
    moment, lane, dur = moment[inside], lane[inside], trace.device.dur[inside]
    order = np.lexsort((moment, lane))
    total = np.append(np.int64(0), np.cumsum(dur[order]))
    return _Sent(lane[order], moment[order], total)


def _launched_in(sent: _Sent, table: Events) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the operations that were launched within each span, and their device time."""
    count, time = np.zeros(len(table), np.int64), np.zeros(len(table), np.int64)
    for lane in np.unique(table.lane).tolist():
        first, last = np.searchsorted(sent.lane, [lane, lane + 1])
        rows = np.flatnonzero(table.lane == lane)
        moments = sent.moment[first:last]
        low = first + np.searchsorted(moments, table.ts[rows], side="left")
        high = first + np.searchsorted(moments, table.end[rows], side="left")
        count[rows], time[rows] = high - low, sent.total[high] - sent.total[low]
    return count, time


def _compiled(trace: Trace, window: Window, sent: _Sent) -> list[Region]:
    rows: list[Region] = []
    # the host runs ahead: a region may end before its first kernel opens the window
    since = int(sent.moment[sent.lane >= 0].min(initial=window.start_ns))
    for table in (trace.ops, trace.annotations):
        found = _outermost(_named(trace, table, window, since, _is_compiled))
        operations, time = _launched_in(sent, found)
        names, at = np.unique(found.name, return_inverse=True)
        for index, name in enumerate(names.tolist()):
            mine = at == index
            rows.append(
                Region(
                    kind="compiled",
                    name=trace.text(name),
                    count=int(mine.sum()),
                    host_ns=int(found.dur[mine].sum()),
                    device_ns=int(time[mine].sum()),
                    operations=int(operations[mine].sum()),
                )
            )
    rows.sort(key=lambda row: (-row.device_ns, -row.host_ns, row.name))
    return rows[:SHOWN]


def _triton(trace: Trace, window: Window) -> list[Region]:
    here = trace.device.take(rows_in(trace.device, window))
    rows = trace.names_where(here.name, lambda name: name.startswith("triton_"))
    if not rows.any():
        return []
    kinds = len(np.unique(here.name[rows]))
    return [
        Region(
            kind="compiled",
            name="generated Triton kernels",
            count=kinds,
            host_ns=0,
            device_ns=int(here.dur[rows].sum()),
            operations=int(rows.sum()),
            note=f"{kinds} different kernels, also counted in the regions that launch them",
        )
    ]


def _compilation(trace: Trace, window: Window, sent: _Sent) -> list[Region]:
    """Return one row for the time in which any thread compiled."""
    tests: tuple[tuple[Events, Callable[[str], bool]], ...] = (
        (trace.ops, is_compiling),
        (trace.annotations, is_compiling),
        (trace.frames, is_compiling),
    )
    since = window.start_ns
    found = [_outermost(_named(trace, table, window, since, test)) for table, test in tests]
    spans = [union(part.ts, part.end, sorted_=True) for part in found]
    time = clip(merge(*spans), window.start_ns, window.end_ns)
    if not len(time):
        return []
    largest = max((p for p in found if len(p)), key=lambda p: int(p.dur.max()))
    # spans and frames of one compilation lie in each other: the table that holds most counts
    held = (_launched_in(sent, part) for part in found)
    operations, device = max((int(n.sum()), int(t.sum())) for n, t in held)
    return [
        Region(
            kind="compilation",
            name=trace.text(int(largest.name[int(largest.dur.argmax())])),
            count=len(time),
            host_ns=time.total,
            device_ns=device,
            operations=operations,
            note="compiling, not running: a window after the warm-up has none",
        )
    ]


def _named(
    trace: Trace, table: Events, window: Window, since: int, test: Callable[[str], bool]
) -> Events:
    """Return the spans of that name that reach into [since, end of the window)."""
    found = table.take(trace.names_where(table.name, test))
    return found.take((found.end > since) & (found.ts < window.end_ns))


def _outermost(table: Events) -> Events:
    """Return the spans that lie in no other span of the same name on the same thread."""
    if not len(table):
        return table
    _, name = np.unique(table.name, return_inverse=True)
    order = np.lexsort((name, table.lane))  # stable: by start within each pair
    group = np.cumsum(np.append(0, (np.diff(name[order]) != 0) | (np.diff(table.lane[order]) != 0)))
    span = int(table.end.max() - table.ts.min()) + 1
    # each group on a stretch of its own, so that one running maximum serves all
    reach = np.maximum.accumulate(table.end[order] - table.ts.min() + group * span)
    begins = table.ts[order] - table.ts.min() + group * span
    inner = np.zeros(len(table), bool)
    inner[order[1:]] = begins[1:] < reach[:-1]
    return table.take(~inner)


def _is_compiled(name: str) -> bool:
    return _COMPILED.search(name) is not None

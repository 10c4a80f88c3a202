"""Graph launches, compiled regions, and the compiling itself.

One call launches all kernels of a graph. They have no operator, so figures by operator miss them,
and the note says how many there are. Compiled regions are nested (a region has a function, which
has a graph). Each row counts all work launched inside, so the rows do not add up.
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

MAX_COMPILED_REGIONS = 50
"""The number of compiled regions that are listed, the longest first: a model may have thousands."""

_COMPILED = re.compile(
    r"Torch-Compiled Region|^CompiledFunction(Backward)?$|^## Call CompiledFxGraph|^Call Compiled"
)


class _Launches(NamedTuple):
    """Device operations of the window in order of lane and launch."""

    lane: NDArray[np.int64]
    moment: NDArray[np.int64]
    total: NDArray[np.int64]
    """The device time of all operations before each one; one value more than the other columns."""


def regions(trace: Trace, links: Links, window: Window) -> tuple[Region, ...]:
    launches = _launches(trace, links, window)
    return (
        *_graphs(trace, links, window),
        *_compiled(trace, window, launches),
        *_triton(trace, window),
        *_compilation(trace, window, launches),
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
    in_window = np.zeros(len(calls), bool)
    in_window[rows_in(calls, window)] = True
    hidden = np.setdiff1d(np.flatnonzero(launches & in_window), call[call >= 0])
    rows = []
    for graph in np.unique(device.graph[graphed]).tolist():
        of_graph = graphed[device.graph[graphed] == graph]
        launching_calls = np.unique(call[of_graph][by_call[of_graph]])
        name = (
            trace.text(int(calls.name[launching_calls[0]]))
            if len(launching_calls)
            else "graph launch"
        )
        rows.append(
            Region(
                kind="graph",
                name=f"graph {graph}" if graph > 0 else name,
                count=len(launching_calls),
                host_ns=int(calls.dur[launching_calls].sum()),
                device_ns=int(device.dur[of_graph].sum()),
                operations=len(of_graph),
                note=_graph_note(links, of_graph, by_call[of_graph]),
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
    without_operator = int((links.device_op[rows] < 0).sum())
    if without_operator:
        notes.append(
            f"{without_operator} of {len(rows)} device operations have no launching operator at all"
        )
    without_call = int((~by_call).sum())
    if without_call:
        notes.append(f"{without_call} have no launching call in the trace")
    return "; ".join(notes)


def _launches(trace: Trace, links: Links, window: Window) -> _Launches:
    inside = rows_in(trace.device, window)
    moment, lane = launched(trace, links)
    moment, lane, dur = moment[inside], lane[inside], trace.device.dur[inside]
    order = np.lexsort((moment, lane))
    total = np.append(np.int64(0), np.cumsum(dur[order]))
    return _Launches(lane[order], moment[order], total)


def _launched_in(launches: _Launches, table: Events) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the operations that were launched within each span, and their device time."""
    count, time = np.zeros(len(table), np.int64), np.zeros(len(table), np.int64)
    for lane in np.unique(table.lane).tolist():
        first, last = np.searchsorted(launches.lane, [lane, lane + 1])
        rows = np.flatnonzero(table.lane == lane)
        moments = launches.moment[first:last]
        low = first + np.searchsorted(moments, table.ts[rows], side="left")
        high = first + np.searchsorted(moments, table.end[rows], side="left")
        count[rows], time[rows] = high - low, launches.total[high] - launches.total[low]
    return count, time


def _compiled(trace: Trace, window: Window, launches: _Launches) -> list[Region]:
    rows: list[Region] = []
    # the host runs ahead: a region may end before its first kernel opens the window
    since = int(launches.moment[launches.lane >= 0].min(initial=window.start_ns))
    for table in (trace.ops, trace.annotations):
        spans = _outermost(_named(trace, table, window, since, _is_compiled))
        operations, time = _launched_in(launches, spans)
        names, name_of_row = np.unique(spans.name, return_inverse=True)
        for index, name in enumerate(names.tolist()):
            of_name = name_of_row == index
            rows.append(
                Region(
                    kind="compiled",
                    name=trace.text(name),
                    count=int(of_name.sum()),
                    host_ns=int(spans.dur[of_name].sum()),
                    device_ns=int(time[of_name].sum()),
                    operations=int(operations[of_name].sum()),
                )
            )
    rows.sort(key=lambda row: (-row.device_ns, -row.host_ns, row.name))
    return rows[:MAX_COMPILED_REGIONS]


def _triton(trace: Trace, window: Window) -> list[Region]:
    operations = trace.device.take(rows_in(trace.device, window))
    rows = trace.names_where(operations.name, lambda name: name.startswith("triton_"))
    if not rows.any():
        return []
    kinds = len(np.unique(operations.name[rows]))
    return [
        Region(
            kind="compiled",
            name="generated Triton kernels",
            count=kinds,
            host_ns=0,
            device_ns=int(operations.dur[rows].sum()),
            operations=int(rows.sum()),
            note=f"{kinds} different kernels, also counted in the regions that launch them",
        )
    ]


def _compilation(trace: Trace, window: Window, launches: _Launches) -> list[Region]:
    """Return one row for the time in which any thread compiled."""
    tests: tuple[tuple[Events, Callable[[str], bool]], ...] = (
        (trace.ops, is_compiling),
        (trace.annotations, is_compiling),
        (trace.frames, is_compiling),
    )
    since = window.start_ns
    tables = [_outermost(_named(trace, table, window, since, test)) for table, test in tests]
    spans = [union(part.ts, part.end, sorted_=True) for part in tables]
    time = clip(merge(*spans), window.start_ns, window.end_ns)
    if not len(time):
        return []
    largest = max((p for p in tables if len(p)), key=lambda p: int(p.dur.max()))
    # one compilation shows in several tables: the table with most launched work counts
    launched_work = (_launched_in(launches, part) for part in tables)
    operations, device = max((int(n.sum()), int(t.sum())) for n, t in launched_work)
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
    spans = table.take(trace.names_where(table.name, test))
    return spans.take((spans.end > since) & (spans.ts < window.end_ns))


def _outermost(table: Events) -> Events:
    """Return the spans that lie in no other span of the same name on the same thread."""
    if not len(table):
        return table
    _, name = np.unique(table.name, return_inverse=True)
    order = np.lexsort((name, table.lane))  # stable: by start within each pair
    group = np.cumsum(np.append(0, (np.diff(name[order]) != 0) | (np.diff(table.lane[order]) != 0)))
    span = int(table.end.max() - table.ts.min()) + 1
    # the times of each group are moved apart, so that one running maximum serves all groups
    reach = np.maximum.accumulate(table.end[order] - table.ts.min() + group * span)
    begins = table.ts[order] - table.ts.min() + group * span
    inner = np.zeros(len(table), bool)
    inner[order[1:]] = begins[1:] < reach[:-1]
    return table.take(~inner)


def _is_compiled(name: str) -> bool:
    return _COMPILED.search(name) is not None

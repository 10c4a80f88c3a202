"""The user's functions that make batches in the program's own process, and what they call."""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.sites import Callee, InputSite, InputSites
from ridgeline.records.trace import Place, Window
from ridgeline.trace.columns import Events
from ridgeline.trace.host_states import is_input
from ridgeline.trace.intervals import NOTHING, Spans, clip, covered, merge, union
from ridgeline.trace.links import Links, Rows
from ridgeline.trace.places import is_own, place_of
from ridgeline.trace.trace import Trace

MAX_SITES = 20
_MAX_CALLEES = 10
_BUILT_IN = re.compile(r"^<built-in (?:method|function) (\w+)")

Kind = Literal["", "single", "multiple", "by hand"]


def input_sites(
    trace: Trace, links: Links, window: Window, by_hand: Callable[[str], bool]
) -> InputSites:
    """Return the functions that make batches, with most time first. `by_hand` returns whether a
    function of the user's makes batches; it is used if the trace has no DataLoader."""
    kind, spans = _loader(trace, links)
    if not spans.total:
        is_by_hand = trace.names_where(trace.frames.name, by_hand)
        makers = trace.frames.take(is_by_hand & (trace.frames.lane == links.main_lane))
        kind, spans = "by hand", union(makers.ts, makers.end)
    spans = clip(spans, window.start_ns, window.end_ns)
    if not spans.total:
        return InputSites()
    steps = max(window.steps, 1)
    inside = covered(spans, trace.frames.ts, trace.frames.ts + 1) > 0
    return InputSites(kind=kind, ns=spans.total / steps, sites=_sites(trace, links, inside, steps))


def _loader(trace: Trace, links: Links) -> tuple[Kind, Spans]:
    tables = (trace.frames, trace.annotations, trace.ops)
    loading = [_input(trace, table, links.main_lane) for table in tables]
    names = {trace.text(int(code)) for table in loading for code in np.unique(table.name)}
    kind: Kind = "single"
    if not any("_SingleProcess" in name for name in names):
        kind = "multiple" if any("_MultiProcessing" in name for name in names) else ""
    return kind, merge(NOTHING, *(union(table.ts, table.end) for table in loading))


def _input(trace: Trace, table: Events, lane: int) -> Events:
    return table.take((table.lane == lane) & trace.names_where(table.name, is_input))


def _sites(
    trace: Trace, links: Links, inside: NDArray[np.bool_], steps: int
) -> tuple[InputSite, ...]:
    frames, parent = trace.frames, links.frame_parent.astype(np.int64)
    inside = inside & (frames.lane == links.main_lane)
    own = trace.names_where(frames.name, is_own) & inside
    rows = np.flatnonzero(own)
    above, library_below = parent.copy(), np.full(len(parent), -1, np.int64)
    library = rows[(above[rows] >= 0) & ~own[np.maximum(above[rows], 0)]]
    while len(library):  # functions of libraries between two functions of the user's
        library_below[library] = above[library]
        above[library] = parent[above[library]]
        library = library[(above[library] >= 0) & ~own[np.maximum(above[library], 0)]]
    spent = frames.dur.astype(np.int64).copy()
    inner = rows[above[rows] >= 0]
    np.subtract.at(spent, above[inner], frames.dur[inner])
    between = inner[library_below[inner] >= 0]
    np.subtract.at(spent, library_below[between], frames.dur[between])
    called = np.flatnonzero(inside & ~own & (parent >= 0) & own[np.maximum(parent, 0)])
    return _grouped(trace, rows, called, parent, spent, steps)


def _grouped(
    trace: Trace, rows: Rows, called: Rows, parent: Rows, spent: Rows, steps: int
) -> tuple[InputSite, ...]:
    name = trace.frames.name
    functions: defaultdict[int, int] = defaultdict(int)
    callees: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows.tolist():
        functions[int(name[row])] += max(int(spent[row]), 0)
    for row in called.tolist():
        callees[int(name[parent[row]])][int(name[row])] += max(int(spent[row]), 0)
    costliest = sorted(functions.items(), key=lambda function: -function[1])[:MAX_SITES]
    sites = []
    for code, ns in costliest:
        place = place_of(trace.text(code))
        if place is not None:
            timed_place = Place(
                file=place.file, line=place.line, function=place.function, ns=round(ns / steps)
            )
            sites.append(
                InputSite(place=timed_place, callees=_callees(trace, callees[code], steps))
            )
    return tuple(sites)


def _callees(trace: Trace, times: dict[int, int], steps: int) -> tuple[Callee, ...]:
    """Count callees by name. The name of a built-in function contains the address of the object
    that it was called on, which is left out."""
    times_by_name: defaultdict[tuple[str, str], int] = defaultdict(int)
    for code, ns in times.items():
        text = trace.text(code)
        built_in, place = _BUILT_IN.match(text), place_of(text)
        if built_in:
            times_by_name[built_in[1], ""] += ns
        elif place is not None:
            module = re.sub(r"[/\\]", ".", place.file.removesuffix(".py").removesuffix("/__init__"))
            times_by_name[place.function, module] += ns
    costliest = sorted(times_by_name.items(), key=lambda callee: -callee[1])[:_MAX_CALLEES]
    return tuple(
        Callee(name=name, within=module, ns=round(ns / steps)) for (name, module), ns in costliest
    )

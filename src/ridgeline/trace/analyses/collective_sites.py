"""The collectives of a rank's traced steps, by kind, size and the place that asked for them.

A collective runs on a stream or a worker's thread of its own; who asked is the operator that
launched it, or (gloo, whose spans name nobody) the call of the same number.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.sites import CollectiveSite, Exchange, Sharding, SitePhase
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.phases import phase_spans
from ridgeline.trace.columns import Kind
from ridgeline.trace.intervals import Spans, covered, intersect, subtract, union
from ridgeline.trace.links import Links, Rows, at_rows, distinct
from ridgeline.trace.places import place_of, user_places
from ridgeline.trace.ranks.collectives import (
    FAMILIES,
    Collectives,
    collectives,
    communication_rows,
    family_of,
)
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import step_spans

_PHASES: tuple[SitePhase, ...] = ("other", "input", "forward", "backward", "optimizer")
_SHARDINGS: tuple[Sharding, ...] = ("", "fsdp1", "fsdp2")
_SHARDING_MARKS: dict[Sharding, str] = {"fsdp1": "FullyShardedDataParallel.", "fsdp2": "FSDP::"}
"""How the names of the spans begin that torch puts around a sharding wrapper's own work."""
_FLOAT32 = 4
_ENGINE = re.compile(r"torch/autograd/__init__\.py\(\d+\): backward$")
_FRAMES = 12
"""Python functions looked at above a call: torch's own wrappers are four or five."""
_DEPTH = 4
"""Operators looked at above a kernel's launch for one with recorded inputs."""


def exchange(trace: Trace, links: Links, window: Window) -> Exchange:
    """Return the collectives of a trace. The result is empty if the trace shows only that
    collectives were asked for, not how long they ran, and for a job of one rank, which has no other
    rank to exchange with."""
    found = collectives(trace, links)
    if found.source not in ("device", "host") or trace.metadata.world_size == 1:
        return Exchange()
    spans, steps = step_spans(trace, window), max(window.steps, 1)
    here = np.flatnonzero(covered(spans, found.start, found.start + 1) > 0)
    computing = computing_spans(trace, spans, found.source == "device")
    # on a CPU, without operators, nothing tells what was computed meanwhile
    if not len(here) or (found.source == "host" and not len(computing)):
        return Exchange()
    running = union(found.start[here], found.end[here])
    exposed = subtract(running, computing)
    sites = _sites(trace, links, found, here, exposed, steps)
    return Exchange(
        sites=tuple(sorted(sites, key=lambda site: (-site.exposed_ns, -site.ns))),
        ns=running.total / steps,
        exposed_ns=exposed.total / steps,
        forwards=_forwards(trace, spans),
        backwards=_backwards(trace, spans),
        world=max(trace.metadata.world_size or 0, int(found.size.max(initial=0))),
    )


def _sites(
    trace: Trace, links: Links, found: Collectives, here: Rows, exposed: Spans, steps: int
) -> list[CollectiveSite]:
    start, end = found.start[here], found.end[here]
    asked = _asked(trace, links, found)[here]
    elements, told = _elements(trace, links, asked), found.bytes[here]
    estimated = (told < 0) & (elements >= 0)
    phases = _phase(trace, links, asked, start)
    keys, which = distinct(
        found.family[here], np.where(estimated, elements * _FLOAT32, told),
        estimated.astype(np.int64), phases, _places(trace, links, asked),
        _sharding(trace, asked, start, phases),
    )  # fmt: skip
    seen, held, took = covered(exposed, start, end), _held(trace, links, asked), end - start
    # spans on several threads lie beside each other: a moment is counted once
    scale = exposed.total / seen.sum() if seen.sum() else 0.0
    places = user_places(trace, links)
    sites = []
    for at, (family, size, guessed, phase, place, sharding) in enumerate(keys.tolist()):
        rows = which == at
        sites.append(
            CollectiveSite(
                name=FAMILIES[family] or "collective",
                bytes=size if size >= 0 else None,
                estimated=bool(guessed),
                calls=int(rows.sum()) / steps,
                ns=float(took[rows].sum()) / steps,
                held_ns=float(held[rows].sum()) / steps,
                least_ns=float(took[rows].min()),
                exposed_ns=float(seen[rows].sum() * scale) / steps,
                phase=_PHASES[phase],
                place=place_of(places.text(place)) if place != -1 else None,
                sharding=_SHARDINGS[sharding],
            )
        )
    return sites


def computing_spans(trace: Trace, spans: Spans, on_device: bool) -> Spans:
    """Return when this rank computed: its kernels, or inside `spans` its operators."""
    if on_device:
        device = trace.device
        computes = device.kind == Kind.KERNEL
        computes[communication_rows(trace)] = False
        return union(device.ts[computes], device.end[computes])
    ops = trace.ops
    works = trace.names_where(ops.name, _computes)
    return intersect(union(ops.ts[works], ops.end[works]), spans)


def _computes(name: str) -> bool:
    """Return whether a name is that of an operator: not of communication, and not of the engine's
    own spans around operators."""
    return "::" in name and not name.startswith(("autograd::", "torch::autograd", "c10d"))


def _asked(trace: Trace, links: Links, found: Collectives) -> Rows:
    """Return the operator that asked for each collective; -1 where none is known."""
    if found.source == "device":
        return links.device_op[found.row]
    ops = trace.ops
    rows = np.flatnonzero(trace.names_where(ops.name, _is_call))
    families = np.array([family_of(trace.text(int(name))) for name in ops.name[rows]], np.int64)
    told = np.full(len(found), -1, np.int64)
    for family in np.unique(found.family):
        mine, theirs = np.flatnonzero(found.family == family), rows[families == family]
        if len(mine) == len(theirs):
            told[mine] = theirs
    return told


def _is_call(name: str) -> bool:
    return name.startswith(("c10d::", "_c10d_functional::", "c10d_functional::"))


def _held(trace: Trace, links: Links, asked: Rows) -> NDArray[np.int64]:
    """Return how long the call of torch.distributed that asked took, with its waiting; 0 where no
    Python stack shows it."""
    frames = trace.frames
    if not len(frames):
        return np.zeros(len(asked), np.int64)
    ours = trace.names_where(frames.name, lambda name: "torch/distributed/" in name)
    at = np.where(asked >= 0, at_rows(links.op_frame, asked), -1)
    outermost = np.full(len(asked), -1, np.int64)
    for _ in range(_FRAMES):
        outermost = np.where((at >= 0) & ours[np.maximum(at, 0)], at, outermost)
        at = np.where(at >= 0, at_rows(links.frame_parent, at), -1)
    return np.where(outermost >= 0, at_rows(frames.dur, outermost), 0).astype(np.int64)


def _elements(trace: Trace, links: Links, asked: Rows) -> NDArray[np.int64]:
    """Return the elements of the first argument of the nearest operator that recorded it; -1 where
    none did."""
    told = np.full(len(asked), -1, np.int64)
    op = asked
    for _ in range(_DEPTH):
        known = (op >= 0) & (told < 0)
        for i in np.flatnonzero(known).tolist():
            told[i] = _size(trace.shape(int(trace.ops.shape[op[i]])).dims)
        op = np.where(op >= 0, at_rows(links.op_parent, op), -1)
    return told


def _size(dims: tuple[Any, ...]) -> int:
    """Return the elements of the largest argument: the inputs of a gather are parts of its
    outputs."""
    sizes = [_count(one) for one in dims]
    return max(sizes, default=-1)


def _count(dims: Any) -> int:
    if not isinstance(dims, list | tuple) or not dims:
        return -1
    if all(isinstance(n, int) for n in dims):
        return int(np.prod(dims))
    # `dims` is a list of tensors here. A tensor without dimensions has one element.
    known = [size for one in dims if (size := 1 if one == [] else _count(one)) > 0]
    return sum(known) if known else -1


def _moment(trace: Trace, asked: Rows, start: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when each collective was asked for or, if that is not known, when it began."""
    return np.where(asked >= 0, at_rows(trace.ops.ts, asked), start).astype(np.int64)


def _sharding(
    trace: Trace, asked: Rows, start: NDArray[np.int64], phases: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return which wrapper asked for each collective, as an index into `_SHARDINGS`. If it is not
    known who asked for a collective of the backward, the sharding wrapper in this trace did, unless
    DistributedDataParallel is in it as well."""
    moment, spans = _moment(trace, asked, start), trace.annotations
    buckets = trace.names_where(spans.name, lambda name: name == "DistributedDataParallel.forward")
    unknown = (asked < 0) & (phases == _PHASES.index("backward")) & (not buckets.any())
    found = np.zeros(len(asked), np.int64)
    for sharding, mark in _SHARDING_MARKS.items():
        marked = trace.names_where(spans.name, lambda name, mark=mark: name.startswith(mark))  # type: ignore[misc]
        if marked.any():
            working = union(spans.ts[marked], spans.end[marked])
            found[(covered(working, moment, moment + 1) > 0) | unknown] = _SHARDINGS.index(sharding)
    return found


def _phase(trace: Trace, links: Links, asked: Rows, start: NDArray[np.int64]) -> NDArray[np.int64]:
    moment = _moment(trace, asked, start)
    found = np.zeros(len(asked), np.int64)
    for name, span in phase_spans(trace, links).items():
        found[covered(span, moment, moment + 1) > 0] = _PHASES.index(name)
    return found


def _places(trace: Trace, links: Links, asked: Rows) -> Rows:
    """Return the user's line on the thread that asked. The backward's own thread has no line: the
    line is where the main thread called it."""
    places = user_places(trace, links)
    found = np.full(len(asked), -1, np.int64)
    known = asked >= 0
    lane, at = trace.ops.lane[asked[known]].astype(np.int64), trace.ops.ts[asked[known]]
    own = places.at(lane, at)
    main = places.at(np.full(len(at), links.main_lane, np.int64), at)
    found[known] = np.where(own != -1, own, main)
    return found


def _forwards(trace: Trace, spans: Spans) -> float:
    """Return the forwards of DistributedDataParallel for each optimizer step."""
    table = trace.annotations
    inside = covered(spans, table.ts, table.ts + 1) > 0
    forwards = trace.names_where(table.name, lambda n: n == "DistributedDataParallel.forward")
    updates = trace.names_where(table.name, lambda n: n.startswith("Optimizer.step#"))
    counted = int((updates & inside).sum())
    return int((forwards & inside).sum()) / counted if counted else 0.0


def _backwards(trace: Trace, spans: Spans) -> float:
    """Return the calls of the autograd engine for each optimizer step, where Python stacks show
    them."""
    frames, table = trace.frames, trace.annotations
    if not len(frames):
        return 0.0
    calls = trace.names_where(frames.name, lambda n: _ENGINE.search(n) is not None)
    updates = trace.names_where(table.name, lambda n: n.startswith("Optimizer.step#"))
    counted = int((updates & (covered(spans, table.ts, table.ts + 1) > 0)).sum())
    called = int((calls & (covered(spans, frames.ts, frames.ts + 1) > 0)).sum())
    return called / counted if counted else 0.0

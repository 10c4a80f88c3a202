"""The collectives of a rank's traced steps, by kind, size and the place that asked for them.

A collective runs on a stream or a thread of its own. Its place is the operator that launched it;
gloo's spans name no operator, so the place is the request with the same number in its family.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.sites import CollectiveSite, Exchange, Sharding
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.phases import CODED_PHASES, phase_codes
from ridgeline.trace.columns import Kind
from ridgeline.trace.intervals import Spans, covered, intersect, subtract, union
from ridgeline.trace.links import Links, Rows, at_rows, distinct
from ridgeline.trace.places import user_places
from ridgeline.trace.ranks.collectives import (
    FAMILIES,
    Collectives,
    collectives,
    communication_rows,
    family_of,
)
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import step_spans

_SHARDINGS: tuple[Sharding, ...] = ("", "fsdp1", "fsdp2")
_SHARDING_MARKS: dict[Sharding, str] = {"fsdp1": "FullyShardedDataParallel.", "fsdp2": "FSDP::"}
"""The beginning of the names of the spans that torch puts around the work of each sharding
wrapper."""
_FLOAT32_BYTES = 4
_BACKWARD_CALL = re.compile(r"torch/autograd/__init__\.py\(\d+\): backward$")
_MAX_CALLERS = 12
"""The number of callers of an operator that are searched: torch's own wrappers are four or
five."""
_MAX_PARENT_OPERATORS = 4
"""The number of operators around a launch that are searched for recorded inputs."""


def exchange(trace: Trace, links: Links, window: Window) -> Exchange:
    """Return the collectives of a trace. The result is empty if the trace shows only that
    collectives were requested, not how long they ran, and for a job of one rank, which has no other
    rank to exchange with."""
    recorded = collectives(trace, links)
    if recorded.source not in ("device", "host") or trace.metadata.world_size == 1:
        return Exchange()
    spans, steps = step_spans(trace, window), max(window.steps, 1)
    rows = np.flatnonzero(covered(spans, recorded.start, recorded.start + 1) > 0)
    computing = computing_spans(trace, spans, recorded.source == "device")
    # on a CPU, only operators show what was computed during a collective
    if not len(rows) or (recorded.source == "host" and not len(computing)):
        return Exchange()
    running = union(recorded.start[rows], recorded.end[rows])
    exposed = subtract(running, computing)
    sites = _sites(trace, links, recorded, rows, exposed, steps)
    return Exchange(
        sites=tuple(sorted(sites, key=lambda site: (-site.exposed_ns, -site.ns))),
        ns=running.total / steps,
        exposed_ns=exposed.total / steps,
        forwards=_forwards(trace, spans),
        backwards=_backwards(trace, spans),
        world=max(trace.metadata.world_size or 0, int(recorded.size.max(initial=0))),
    )


def _sites(
    trace: Trace, links: Links, recorded: Collectives, chosen: Rows, exposed: Spans, steps: int
) -> list[CollectiveSite]:
    start, end = recorded.start[chosen], recorded.end[chosen]
    requests = _requesting_ops(trace, links, recorded)[chosen]
    elements, known_bytes = _element_counts(trace, links, requests), recorded.bytes[chosen]
    estimated = (known_bytes < 0) & (elements >= 0)
    phases = phase_codes(trace, links, _request_times(trace, requests, start))
    keys, which = distinct(
        recorded.family[chosen], np.where(estimated, elements * _FLOAT32_BYTES, known_bytes),
        estimated.astype(np.int64), phases, _places(trace, links, requests),
        _sharding(trace, requests, start, phases),
    )  # fmt: skip
    exposed_ns, request_ns, duration = (
        covered(exposed, start, end),
        _request_durations(trace, links, requests),
        end - start,
    )
    # collectives on several threads overlap, so their sum is scaled to the time they cover
    scale = exposed.total / exposed_ns.sum() if exposed_ns.sum() else 0.0
    places = user_places(trace, links)
    sites = []
    for group, (family, size, is_estimated, phase, place, sharding) in enumerate(keys.tolist()):
        rows = which == group
        sites.append(
            CollectiveSite(
                name=FAMILIES[family] or "collective",
                bytes=size if size >= 0 else None,
                estimated=bool(is_estimated),
                calls=int(rows.sum()) / steps,
                ns=float(duration[rows].sum()) / steps,
                held_ns=float(request_ns[rows].sum()) / steps,
                least_ns=float(duration[rows].min()),
                exposed_ns=float(exposed_ns[rows].sum() * scale) / steps,
                phase=CODED_PHASES[phase],
                place=places.place(place),
                sharding=_SHARDINGS[sharding],
            )
        )
    return sites


def computing_spans(trace: Trace, spans: Spans, on_device: bool) -> Spans:
    """Return when this rank computed: the time of its kernels or, without a device, the time of its
    operators inside `spans`."""
    if on_device:
        device = trace.device
        computes = device.kind == Kind.KERNEL
        computes[communication_rows(trace)] = False
        return union(device.ts[computes], device.end[computes])
    ops = trace.ops
    works = trace.names_where(ops.name, _is_compute_operator)
    return intersect(union(ops.ts[works], ops.end[works]), spans)


def _is_compute_operator(name: str) -> bool:
    """Return whether a name is that of an operator that computes. Communication does not count, nor
    do the spans that the autograd engine puts around operators."""
    return "::" in name and not name.startswith(("autograd::", "torch::autograd", "c10d"))


def _requesting_ops(trace: Trace, links: Links, recorded: Collectives) -> Rows:
    """Return the operator that requested each collective; -1 where none is known."""
    if recorded.source == "device":
        return links.device_op[recorded.row]
    ops = trace.ops
    rows = np.flatnonzero(trace.names_where(ops.name, _is_request))
    families = np.array([family_of(trace.text(int(name))) for name in ops.name[rows]], np.int64)
    requests = np.full(len(recorded), -1, np.int64)
    for family in np.unique(recorded.family):
        of_family, candidates = np.flatnonzero(recorded.family == family), rows[families == family]
        if len(of_family) == len(candidates):
            requests[of_family] = candidates
    return requests


def _is_request(name: str) -> bool:
    return name.startswith(("c10d::", "_c10d_functional::", "c10d_functional::"))


def _request_durations(trace: Trace, links: Links, requests: Rows) -> NDArray[np.int64]:
    """Return the duration, waiting included, of the torch.distributed function that requested each
    collective; 0 where no Python stack shows it."""
    frames = trace.frames
    if not len(frames):
        return np.zeros(len(requests), np.int64)
    in_distributed = trace.names_where(frames.name, lambda name: "torch/distributed/" in name)
    frame = np.where(requests >= 0, at_rows(links.op_frame, requests), -1)
    outermost = np.full(len(requests), -1, np.int64)
    for _ in range(_MAX_CALLERS):
        outermost = np.where((frame >= 0) & in_distributed[np.maximum(frame, 0)], frame, outermost)
        frame = np.where(frame >= 0, at_rows(links.frame_parent, frame), -1)
    return np.where(outermost >= 0, at_rows(frames.dur, outermost), 0).astype(np.int64)


def _element_counts(trace: Trace, links: Links, requests: Rows) -> NDArray[np.int64]:
    """Return the element count of the largest argument of the nearest operator with recorded
    inputs; -1 where there is none."""
    counts = np.full(len(requests), -1, np.int64)
    op = requests
    for _ in range(_MAX_PARENT_OPERATORS):
        pending = (op >= 0) & (counts < 0)
        for i in np.flatnonzero(pending).tolist():
            counts[i] = _largest_argument(trace.shape(int(trace.ops.shape[op[i]])).dims)
        op = np.where(op >= 0, at_rows(links.op_parent, op), -1)
    return counts


def _largest_argument(dims: tuple[Any, ...]) -> int:
    """Return the element count of the largest argument. The largest one counts, because the inputs
    of a gather are parts of its output."""
    sizes = [_elements_in(argument) for argument in dims]
    return max(sizes, default=-1)


def _elements_in(dims: Any) -> int:
    if not isinstance(dims, list | tuple) or not dims:
        return -1
    if all(isinstance(n, int) for n in dims):
        return int(np.prod(dims))
    # `dims` is a list of tensors here. A tensor without dimensions has one element.
    sizes = [size for tensor in dims if (size := 1 if tensor == [] else _elements_in(tensor)) > 0]
    return sum(sizes) if sizes else -1


def _request_times(trace: Trace, requests: Rows, start: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when each collective was requested or, if that is not known, when it began."""
    return np.where(requests >= 0, at_rows(trace.ops.ts, requests), start).astype(np.int64)


def _sharding(
    trace: Trace, requests: Rows, start: NDArray[np.int64], phases: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return which wrapper requested each collective, as an index into `_SHARDINGS`. A collective
    of the backward without a known request is ascribed to the sharding wrapper of this trace,
    unless the trace also has DistributedDataParallel."""
    moment, spans = _request_times(trace, requests, start), trace.annotations
    buckets = trace.names_where(spans.name, lambda name: name == "DistributedDataParallel.forward")
    unknown = (requests < 0) & (phases == CODED_PHASES.index("backward")) & (not buckets.any())
    codes = np.zeros(len(requests), np.int64)
    for sharding, mark in _SHARDING_MARKS.items():
        marked = trace.names_where(spans.name, lambda name, mark=mark: name.startswith(mark))  # type: ignore[misc]
        if marked.any():
            working = union(spans.ts[marked], spans.end[marked])
            codes[(covered(working, moment, moment + 1) > 0) | unknown] = _SHARDINGS.index(sharding)
    return codes


def _places(trace: Trace, links: Links, requests: Rows) -> Rows:
    """Return the user's function on the requesting thread, as a code. The backward's thread has
    none: there, the function is the one in which the main thread called the backward."""
    places = user_places(trace, links)
    codes = np.full(len(requests), -1, np.int64)
    known = requests >= 0
    lane, at = trace.ops.lane[requests[known]].astype(np.int64), trace.ops.ts[requests[known]]
    codes[known] = places.at_or_main(lane, at)
    return codes


def _forwards(trace: Trace, spans: Spans) -> float:
    """Return the forwards of DistributedDataParallel for each optimizer step."""
    table = trace.annotations
    inside = covered(spans, table.ts, table.ts + 1) > 0
    forwards = trace.names_where(table.name, lambda name: name == "DistributedDataParallel.forward")
    updates = trace.names_where(table.name, lambda name: name.startswith("Optimizer.step#"))
    update_count = int((updates & inside).sum())
    return int((forwards & inside).sum()) / update_count if update_count else 0.0


def _backwards(trace: Trace, spans: Spans) -> float:
    """Return the calls of the autograd engine for each optimizer step, where Python stacks show
    them."""
    frames, table = trace.frames, trace.annotations
    if not len(frames):
        return 0.0
    calls = trace.names_where(frames.name, lambda name: _BACKWARD_CALL.search(name) is not None)
    updates = trace.names_where(table.name, lambda name: name.startswith("Optimizer.step#"))
    update_count = int((updates & (covered(spans, table.ts, table.ts + 1) > 0)).sum())
    call_count = int((calls & (covered(spans, frames.ts, frames.ts + 1) > 0)).sum())
    return call_count / update_count if update_count else 0.0

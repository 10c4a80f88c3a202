"""The operators of the steps that count, each once, with its work; on a GPU those that launched."""

import re
from collections import Counter

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.op_work import CallWork, call_work
from ridgeline.trace.analyses.recorded_calls import DTYPES
from ridgeline.trace.analyses.roofline import hint_of
from ridgeline.trace.columns import Events, Kind
from ridgeline.trace.intervals import Spans, clip, covered, subtract, union
from ridgeline.trace.links import Links, Rows, beneath, distinct
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.window import steps_of

Mask = NDArray[np.bool_]


class Counted(Struct, frozen=True):
    """Operators that answer for work, each with its own and its callees' time."""

    rows: Rows
    """Rows of `trace.ops` in the steps."""
    works: tuple[CallWork, ...]
    which: Rows
    """For each of `rows` its place in `works`."""
    tf32: Mask
    """For each of `rows`: its kernels multiply float32 in TF32."""
    state: NDArray[np.int8]
    """For each of `trace.ops`: `work_owners`' word."""

    def total(self, values: list[int]) -> float:
        """Return the sum over rows of a number for each of `works`."""
        calls = np.bincount(self.which, minlength=len(values)).tolist()
        return float(sum(value * count for value, count in zip(values, calls, strict=True)))

    def total_of(self, rows: Mask) -> float:
        """Return the FLOPs of products in the picked ones of `rows`."""
        calls = np.bincount(self.which[rows], minlength=len(self.works)).tolist()
        return float(sum(w.flops * count for w, count in zip(self.works, calls, strict=True)))

    def by_dtype(self) -> dict[str, float]:
        """Return the FLOPs of products by arithmetic, the most first."""
        found: dict[str, float] = {}
        for tf32 in (False, True):
            calls = np.bincount(self.which[self.tf32 == tf32], minlength=len(self.works))
            for work, count in zip(self.works, calls.tolist(), strict=True):
                if work.flops and count:
                    name = "tf32" if tf32 and work.dtype == "float32" else _ceiling_name(work.dtype)
                    found[name] = found.get(name, 0.0) + float(work.flops) * count
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@once_per_trace
def step_spans(trace: Trace, window: Window) -> Spans:
    """The marked steps inside the window, without what lies between two marks (the profiler's own
    bookkeeping, 0.1 ms). Where none is marked, the window, and before it what launched its work."""
    marks = steps_of(trace)
    spans = clip(union(marks.start, marks.end), window.start_ns, window.end_ns)
    if len(spans):
        return spans
    start = window.start_ns
    if len(trace.device) and len(trace.ops):
        start = min(start, int(trace.ops.ts[0]))
    return union(np.array([start]), np.array([window.end_ns]))


def started(table: Events, spans: Spans) -> Mask:
    """Return the rows that start in one of the spans."""
    return covered(spans, table.ts, table.ts + 1) > 0


@once_per_trace
def count_work(trace: Trace, links: Links, spans: Spans) -> Counted:
    ops = trace.ops
    asked = started(ops, spans) & (ops.shape >= 0)
    rows = np.flatnonzero(asked)
    pairs, which = distinct(ops.name[rows], ops.shape[rows]) if len(rows) else _NONE
    usual = _usual_dtype(trace, rows)
    told = [call_work(trace.text(n), trace.shape(s), usual) for n, s in pairs.tolist()]
    works = tuple(dict.fromkeys(work for work in told if work is not None))
    place = {work: i for i, work in enumerate(works)}
    at = np.full(len(ops), -1, np.int64)
    at[rows] = np.array([-1 if w is None else place[w] for w in told], np.int64)[which]
    flops = np.zeros(len(ops))
    known = at >= 0
    flops[known] = np.array([float(w.flops) for w in works])[at[known]] if works else 0.0
    state = owning(links.op_parent, known, flops)
    owners = np.flatnonzero((state == OWNS) & _ran(trace, links))
    return Counted(
        rows=owners,
        works=works,
        which=at[owners],
        tf32=_tf32(trace, links)[owners],
        state=state,
    )


def _ran(trace: Trace, links: Links) -> Mask:
    """On a GPU an operator that launched nothing was given up, or worked on the host."""
    if not len(trace.device):
        return ~given_up(trace)
    every = np.ones(len(trace.device), bool)
    return np.asarray(beneath(links.op_parent, _per_op(trace, links, every)) > 0, bool)


_NONE = (np.empty((0, 2), np.int64), np.empty(0, np.int64))


def _per_op(trace: Trace, links: Links, picked: Mask) -> Rows:
    """Return how many of the picked device operations each operator launched."""
    found = np.zeros(len(trace.ops), np.int64)
    op = links.device_op[picked]
    np.add.at(found, op[op >= 0], 1)
    return found


def _tf32(trace: Trace, links: Links) -> Mask:
    device = trace.device
    kernels = trace.names_where(device.name, lambda name: hint_of(name).tf32)
    picked = kernels & (device.kind == Kind.KERNEL)
    return np.asarray(beneath(links.op_parent, _per_op(trace, links, picked)) > 0, bool)


def _usual_dtype(trace: Trace, rows: Rows) -> str:
    """Return the floating type of most calls. It stands in for lists of tensors, which record no
    type."""
    votes: Counter[str] = Counter()
    codes, counts = np.unique(trace.ops.shape[rows], return_counts=True)
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        types = (DTYPES.get(str(k).removeprefix("c10::"), "") for k in trace.shape(code).types)
        votes.update({t: count for t in set(types) if t.startswith(("float", "bfloat"))})
    return votes.most_common(1)[0][0] if votes else "float32"


def _ceiling_name(dtype: str) -> str:
    """Return the dtype whose ceiling applies: complex products are float products, and all forms of
    float8 share one ceiling."""
    if dtype.startswith("float8"):
        return "float8"
    return {"complex64": "float32", "complex128": "float64", "uint8": "int8", "quint8": "int8",
            "qint8": "int8"}.get(dtype, dtype)  # fmt: skip


NOTHING, OWNS, INSIDE = 0, 1, 2
_MORE = 1.001
"""By so much an operator must have more products than its callees: formulas may differ in the last
digit (a bias counted or not)."""


def owning(parent: Rows, known: NDArray[np.bool_], flops: NDArray[np.float64]) -> NDArray[np.int8]:
    """For each operator NOTHING, OWNS, or INSIDE one that does. Callers stand before callees."""
    above = parent.tolist()
    own = np.where(known, flops, 0.0).tolist()
    below = [0.0] * len(above)
    for row in range(len(above) - 1, -1, -1):
        if above[row] >= 0:
            below[above[row]] += max(own[row], below[row])
    state = [NOTHING] * len(above)
    for row, tells in enumerate(known.tolist()):
        if above[row] >= 0 and state[above[row]] != NOTHING:
            state[row] = INSIDE
        elif tells and (own[row] > _MORE * below[row] or not (own[row] or below[row])):
            state[row] = OWNS
    return np.array(state, np.int8)


_FILE = r"(^|[/\\])torch[/\\]utils[/\\]checkpoint\.py\(\d+\): "
_SECOND_FORWARD = re.compile(_FILE + "(backward|recompute_fn)$")
_STOPS = re.compile(_FILE + "recompute_fn$")
_SAVES = re.compile(_FILE + "pack_hook$")
_AUTOGRAD = re.compile(r"(^|[/\\])torch[/\\]autograd[/\\]__init__\.py\(\d+\): backward$")


def second_forward(trace: Trace, rows: Rows) -> Mask:
    """Return which of these operators ran in a second forward, where Python stacks show it."""
    ops = trace.ops
    found = np.zeros(len(rows), bool)
    for lane in np.unique(trace.frames.lane[_named(trace, _SECOND_FORWARD)]).tolist():
        again = _spans(trace, _SECOND_FORWARD, lane)
        # the older kind runs its forward and its backward inside a backward of its own
        inner = _spans(trace, _AUTOGRAD, lane, again)
        at = ops.ts[rows]
        inside = covered(subtract(again, inner), at, at + 1) > 0
        found |= (ops.lane[rows] == lane) & inside
    return found


def given_up(trace: Trace) -> Mask:
    """Of all operators: those still open at the last tensor a second forward saved, with nothing
    begun after it."""
    frames, ops = trace.frames, trace.ops
    found = np.zeros(len(ops), bool)
    saves = np.flatnonzero(_named(trace, _SAVES))
    for frame in np.flatnonzero(_named(trace, _STOPS)).tolist():
        start, end, lane = frames.ts[frame], frames.end[frame], frames.lane[frame]
        held = saves[(frames.ts[saves] >= start) & (frames.end[saves] <= end)]
        held = held[frames.lane[held] == lane]
        if not len(held):
            continue
        last = held[-1]
        first, stop = np.searchsorted(ops.ts, [start, end])
        rows = np.arange(first, stop)
        rows = rows[ops.lane[rows] == lane]
        if not (ops.ts[rows] >= frames.end[last]).any():
            found[rows[ops.end[rows] >= frames.end[last]]] = True
    return found


def _named(trace: Trace, pattern: re.Pattern[str]) -> Mask:
    return np.asarray(
        trace.names_where(trace.frames.name, lambda name: pattern.search(name) is not None), bool
    )


def _spans(trace: Trace, pattern: re.Pattern[str], lane: int, within: Spans | None = None) -> Spans:
    """When functions of that name ran on a lane; of those that began within spans only."""
    frames = trace.frames
    rows = _named(trace, pattern) & (frames.lane == lane)
    if within is not None:
        rows &= covered(within, frames.ts, frames.ts + 1) > 0
    return union(frames.ts[rows], frames.end[rows])

"""What a traced step did: FLOPs, bytes, what bound them, and how much of the step they were.

FLOPs are counted from the operators the host called, each once (`work_owners`), as executed: a
checkpointed part counts each time it runs. On a GPU only operators that launched something count,
so work in a replayed CUDA graph, which no operator announces, is missing, and coverage says so.
"""

import re
from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.cost.formulas import find
from ridgeline.records.machine import Device
from ridgeline.records.step_work import StepWork, Uncounted
from ridgeline.records.trace import RooflineRow, Window
from ridgeline.records.trust import Trust
from ridgeline.trace.analyses.busy import busy_spans, is_communication
from ridgeline.trace.analyses.recorded_calls import DTYPES, CallWork, OpWork, call_work, is_free
from ridgeline.trace.analyses.roofline import Hint, hint_of, roofline, row_of
from ridgeline.trace.columns import Codes, DeviceOps, Kind
from ridgeline.trace.host_states import is_collective_wait, is_input
from ridgeline.trace.intervals import Spans, covered, gaps, intersect, merge, subtract, union
from ridgeline.trace.links import Links, Rows, at_rows, beneath, distinct, own_time
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.window import rows_in, started, step_spans

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
        again = _named_spans(trace, _SECOND_FORWARD, lane)
        # the older kind runs its forward and its backward inside a backward of its own
        inner = _named_spans(trace, _AUTOGRAD, lane, again)
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


def _named_spans(
    trace: Trace, pattern: re.Pattern[str], lane: int, within: Spans | None = None
) -> Spans:
    """When functions of that name ran on a lane; of those that began within spans only."""
    frames = trace.frames
    rows = _named(trace, pattern) & (frames.lane == lane)
    if within is not None:
        rows &= covered(within, frames.ts, frames.ts + 1) > 0
    return union(frames.ts[rows], frames.end[rows])


_MIN_COVERED_SHARE = 0.5
"""If a smaller share of the operator time has shapes and a formula, the totals say little."""


class OperatorTime(Struct, frozen=True, kw_only=True):
    wall_ns: int
    busy_ns: int
    input_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int
    """None of them."""
    covered: float
    uncounted: tuple[Uncounted, ...]
    operators: int
    short_share: float
    rows: tuple[RooflineRow, ...]
    """Covered work against its ceilings; `share` is of operator time."""


def step_work(trace: Trace, links: Links, window: Window, device: Device | None) -> StepWork:
    """Return the work of one step, the mean of the window's steps. `device` has its ceilings; None
    where it is unknown."""
    spans = step_spans(trace, window)
    on_gpu = len(trace.device) > 0
    # what a Dataset computes in the program's own process is input, not the model's work
    asked = spans if on_gpu else subtract(spans, input_spans(trace, links))
    counted = count_work(trace, links, asked)
    steps = max(window.steps, 1)
    if on_gpu:
        time = device_time(trace, links, window, counted, device, steps)
    else:
        time = host_time(trace, links, spans, counted, device, steps)
    wall = max(time.wall_ns, 1)
    told = bound(time.rows)
    works = counted.works
    by_dtype = {name: flops / steps for name, flops in counted.by_dtype().items()}
    return StepWork(
        device="cuda" if on_gpu else "cpu",
        steps=window.steps,
        step_ms=time.wall_ns / 1e6 / steps,
        flops=counted.total([w.flops for w in works]) / steps,
        all_flops=counted.total([w.all_flops for w in works]) / steps,
        recomputed_flops=counted.total_of(second_forward(trace, counted.rows)) / steps,
        skipped_flops=counted.total([w.skipped for w in works]) / steps,
        bytes=counted.total([w.bytes for w in works]) / steps,
        flops_by_dtype=by_dtype,
        dtype=next(iter(by_dtype), ""),
        coverage=time.covered,
        uncounted=time.uncounted,
        operator_ms=time.busy_ns / 1e6 / steps,
        op_share=time.busy_ns / wall,
        input_share=time.input_ns / wall,
        communication_share=time.communication_ns / wall,
        copy_share=time.copy_ns / wall,
        overhead_share=time.idle_ns / wall,
        compute_share=told.compute_share,
        memory_share=told.memory_share,
        attained=told.attained,
        compute_attained=told.compute_attained,
        memory_attained=told.memory_attained,
        operators=time.operators / steps,
        short_share=time.short_share,
        notes=_notes(trace, window, counted, time),
        trust=_trust(trace, time),
    )


def _notes(trace: Trace, window: Window, counted: Counted, time: OperatorTime) -> tuple[str, ...]:
    said = []
    if not window.steps:
        said.append("no step is marked: the whole window counts as one")
    if any(trace.device.graph > 0):
        said.append(
            "kernels of replayed CUDA graphs have no operators: their FLOPs are not counted"
        )
    if any(one.op == COMPILED or one.op.startswith("triton_") for one in time.uncounted):
        said.append("kernels made by torch.compile have no formula: their FLOPs are not counted")
    if any(work.skipped for work in counted.works):
        said.append("causal attention counts over the full square")
    return tuple(said)


def _trust(trace: Trace, time: OperatorTime) -> Trust:
    if not (trace.ops.shape >= 0).any():
        return Trust(confidence="unreliable", why="no inputs of operators were recorded")
    if time.covered < _MIN_COVERED_SHARE:
        why = f"shapes and formulas cover {100 * time.covered:.0f} % of operator time"
        return Trust(confidence="doubtful", why=why)
    return Trust()


MAX_SHORT_NS = 10_000
MAX_UNCOUNTED_OPERATORS = 10


class Bound(Struct, frozen=True):
    compute_share: float | None = None
    memory_share: float | None = None
    attained: float | None = None
    compute_attained: float | None = None
    memory_attained: float | None = None


def bound(rows: tuple[RooflineRow, ...]) -> Bound:
    """Return what limits the covered work, by its time; nothing where no ceiling is known."""
    compute = [row for row in rows if row.bound == "compute"]
    memory = [row for row in rows if row.bound == "memory"]
    if not compute and not memory:
        return Bound()
    return Bound(
        compute_share=sum(row.share for row in compute),
        memory_share=sum(row.share for row in memory),
        attained=_attained([*compute, *memory]),
        compute_attained=_attained(compute),
        memory_attained=_attained(memory),
    )


def _attained(rows: list[RooflineRow]) -> float | None:
    # Data in a cache, or a Winograd product, may be faster than a ceiling that does not bind it.
    # Such an operator counts as having reached its ceiling.
    held = [
        (row.device_ns, 1.0 if row.over_ceiling else row.attained)
        for row in rows
        if row.over_ceiling or row.attained is not None
    ]
    spent = sum(ns for ns, _ in held)
    return sum(ns * min(share or 0.0, 1.0) for ns, share in held) / spent if spent else None


def uncounted(
    found: Iterable[tuple[str, int, int]], total: int, steps: int
) -> tuple[Uncounted, ...]:
    """Return the operators with most time, from (operator, calls, time)."""
    ordered = sorted(found, key=lambda one: -one[2])[:MAX_UNCOUNTED_OPERATORS]
    return tuple(
        Uncounted(op=op, calls=calls / steps, share=ns / total)
        for op, calls, ns in ordered
        if ns > 0
    )


COMPILED = "compiled code"
_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc|nccl):|^c10d::|^_c10d_functional::")
_KERNEL_FRAME = re.compile(r"^<built-in (function|method) (kernel|cpp_fused\w*)\b")


def host_time(
    trace: Trace, links: Links, spans: Spans, counted: Counted, device: Device | None, steps: int
) -> OperatorTime:
    ops = trace.ops
    inputs, talks = intersect(input_spans(trace, links), spans), _communication(trace, spans)
    here = started(ops, subtract(spans, inputs))
    operator = here & trace.names_where(ops.name, _is_operator)
    compiled, compiled_calls = _compiled(trace, spans)
    owned = ops.dur[counted.rows]
    own = own_time(links.op_parent, ops.dur)
    free = trace.names_where(ops.name, is_free) & operator & (counted.state == NOTHING)
    alone = _alone(trace, links, operator, counted, own)
    spent_free, spent_alone = int(own[free].sum()), int(own[alone].sum())
    total = max(int(owned.sum()) + spent_free + spent_alone + compiled.total, 1)
    works = operator & ~_beneath(links.op_parent, trace.names_where(ops.name, _talks))
    working = merge(union(ops.ts[works], ops.end[works]), compiled)
    busy = subtract(intersect(working, spans), inputs)
    # gloo's threads talk beside the operators: only what no operator hides is a wait
    talks = subtract(subtract(talks, inputs), busy)
    left = spans.total - merge(busy, inputs, talks).total
    brief = np.concatenate([owned, own[free], own[alone]])
    return OperatorTime(
        wall_ns=spans.total,
        busy_ns=busy.total,
        input_ns=inputs.total,
        communication_ns=talks.total,
        copy_ns=0,
        idle_ns=max(left, 0),
        covered=(int(owned.sum()) + spent_free) / total,
        uncounted=uncounted(
            [*_by_name(trace, alone, own), (COMPILED, compiled_calls, compiled.total)],
            total, steps,
        ),
        operators=int(_outermost(links.op_parent, operator).sum()),
        short_share=float(brief[brief < MAX_SHORT_NS].sum()) / total,
        rows=_rows(counted, owned, total, device),
    )  # fmt: skip


def _is_operator(name: str) -> bool:
    """Return whether a name is that of an operator: no communication, none of the engine's own
    spans, no node of the graph (`AddmmBackward0`)."""
    if "::" not in name or name.startswith(("autograd::", "torch::autograd")):
        return False
    return not _COLLECTIVE.search(name)


def _alone(trace: Trace, links: Links, operator: Mask, counted: Counted, own: Rows) -> Mask:
    """Operators nobody answers for that call nothing which works, or do most themselves."""
    free = trace.names_where(trace.ops.name, is_free)
    parent = links.op_parent
    working = np.flatnonzero(~free & (parent >= 0))
    calls_work = np.zeros(len(parent), bool)
    calls_work[parent[working]] = True
    formulated = trace.names_where(trace.ops.name, lambda name: find(name) is not None)
    here = operator & ~free & (counted.state == NOTHING)
    mostly = _usually(trace.ops.name, here, 2 * own > trace.ops.dur)
    return np.asarray(here & (~calls_work | (~formulated & mostly)), bool)


def _usually(names: Codes, rows: Mask, so: Mask) -> Mask:
    """By name, whether it is so for most of the rows: one call may have lost the processor."""
    most = int(names.max(initial=0)) + 1
    every, those = (np.bincount(names[mask], minlength=most) for mask in (rows, rows & so))
    return np.asarray((2 * those > every)[names], bool)


def _outermost(parent: Rows, operator: Mask) -> Mask:
    return np.asarray(operator & ~_beneath(parent, operator), bool)


def _beneath(parent: Rows, those: Mask) -> Mask:
    """Return the operators that run inside one of those, at any depth: what a collective copies
    belongs to the collective."""
    above, is_one = parent.tolist(), those.tolist()
    inside = [False] * len(above)
    for row, caller in enumerate(above):
        if caller >= 0:
            inside[row] = inside[caller] or is_one[caller]
    return np.array(inside, bool)


def _by_name(trace: Trace, rows: Mask, own: Rows) -> list[tuple[str, int, int]]:
    names, at = np.unique(trace.ops.name[rows], return_inverse=True)
    ns, calls = np.zeros((2, len(names)), np.int64)
    np.add.at(ns, at, own[rows])
    np.add.at(calls, at, 1)
    found = zip(names.tolist(), calls.tolist(), ns.tolist(), strict=True)
    return [(trace.text(name), count, spent) for name, count, spent in found]


def _rows(
    counted: Counted, owned: Rows, total: int, device: Device | None
) -> tuple[RooflineRow, ...]:
    size = len(counted.works)
    ns, calls = np.zeros((2, size), np.int64)
    np.add.at(ns, counted.which, owned)
    np.add.at(calls, counted.which, 1)
    told = zip(counted.works, calls.tolist(), ns.tolist(), strict=True)
    return tuple(
        row_of("", "", OpWork(work.executed, work.bytes, work.dtype), Hint(), count, spent, total,
               device)
        for work, count, spent in told
        if count and (work.executed or work.bytes)
    )  # fmt: skip


def input_spans(trace: Trace, links: Links) -> Spans:
    """Return when the main thread waited for a batch or made one."""
    found = [
        union(table.ts[rows], table.end[rows])
        for table in (trace.annotations, trace.frames)
        for rows in [trace.names_where(table.name, is_input) & (table.lane == links.main_lane)]
    ]
    return merge(*found)


def _communication(trace: Trace, spans: Spans) -> Spans:
    """Return when this rank exchanged data or waited to; nothing for a job of one rank."""
    alone = trace.metadata.world_size == 1
    found = [
        union(table.ts[rows], table.end[rows])
        for table in (() if alone else (trace.ops, trace.annotations))
        for rows in [trace.names_where(table.name, _talks)]
    ]
    return intersect(merge(*found), spans)


def _talks(name: str) -> bool:
    return bool(_COLLECTIVE.search(name)) or is_collective_wait(name)


def _compiled(trace: Trace, spans: Spans) -> tuple[Spans, int]:
    """Return the kernels that inductor made: by Python's calls of them, else by the graph's span
    without operators."""
    frames, marks = trace.frames, trace.annotations
    graphs = trace.names_where(marks.name, lambda name: "Call CompiledFxGraph" in name)
    inside = union(marks.ts[graphs], marks.end[graphs])
    called = trace.names_where(frames.name, lambda name: bool(_KERNEL_FRAME.match(name)))
    called &= covered(inside, frames.ts, frames.ts + 1) > 0
    if called.any():
        held = called & started(frames, spans)
        return intersect(union(frames.ts[held], frames.end[held]), spans), int(held.sum())
    rows = trace.names_where(trace.ops.name, _is_operator)
    told = union(trace.ops.ts[rows], trace.ops.end[rows])
    return intersect(subtract(inside, told), spans), int((graphs & started(marks, spans)).sum())


_ALL_ROWS = 1_000_000
_LINK = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Host -> Device|Device -> Host")


def device_time(
    trace: Trace, links: Links, window: Window, counted: Counted, device: Device | None, steps: int
) -> OperatorTime:
    own = _busiest(trace, window)
    busy = busy_spans(own, window)
    talks = trace.names_where(own.name, is_communication) & (own.kind == Kind.KERNEL)
    computing = busy_spans(own.take((own.kind == Kind.KERNEL) & ~talks), window)
    copies = (own.kind == Kind.MEMCPY) & trace.names_where(own.name, _over_link)
    waiting = intersect(input_spans(trace, links), gaps(busy, window.start_ns, window.end_ns))
    rows = rows_in(trace.device, window)
    rows = rows[~_linked(trace)[rows]]
    dur = trace.device.dur[rows]
    spent = max(int(dur.sum()), 1)
    op = links.device_op[rows]
    known = (op >= 0) & (at_rows(counted.state, op) != NOTHING)
    told = roofline(trace, links, window, device, _ALL_ROWS).rows
    return OperatorTime(
        wall_ns=window.ns,
        busy_ns=busy.total,
        input_ns=waiting.total,
        communication_ns=subtract(busy_spans(own.take(talks), window), computing).total,
        copy_ns=subtract(busy_spans(own.take(copies), window), computing).total,
        idle_ns=max(window.ns - busy.total - waiting.total, 0),
        covered=int(dur[known].sum()) / spent,
        uncounted=uncounted(_device_by_name(trace, links, rows[~known]), spent, steps),
        operators=len(rows_in(own, window)),
        short_share=float(dur[dur < MAX_SHORT_NS].sum()) / spent,
        rows=tuple(msgspec.structs.replace(row, share=row.device_ns / spent) for row in told),
    )


def _linked(trace: Trace) -> NDArray[np.bool_]:
    """Return the collectives and the copies between host and device. Links limit them, so they are
    no operator's work."""
    ops = trace.device
    talks = trace.names_where(ops.name, is_communication) & (ops.kind == Kind.KERNEL)
    copies = (ops.kind == Kind.MEMCPY) & trace.names_where(ops.name, _over_link)
    return np.asarray(talks | copies, bool)


def _busiest(trace: Trace, window: Window) -> DeviceOps:
    """Return the operations of the device that worked longest: as a rule, a process drives one
    device."""
    ops = trace.device
    each = [ops.take(ops.device == number) for number in np.unique(ops.device)]
    return max(each, key=lambda one: busy_spans(one, window).total)


def _over_link(name: str) -> bool:
    return _LINK.search(name) is not None


def _device_by_name(trace: Trace, links: Links, rows: Rows) -> list[tuple[str, int, int]]:
    """Return the pieces of device work and their time by the operator that launched them, else by
    their own name."""
    op = links.device_op[rows]
    name = np.where(op >= 0, at_rows(trace.ops.name, op), trace.device.name[rows])
    found, at = np.unique(name, return_inverse=True)
    ns, calls = np.zeros((2, len(found)), np.int64)
    np.add.at(ns, at, trace.device.dur[rows])
    np.add.at(calls, at, 1)
    told = zip(found.tolist(), calls.tolist(), ns.tolist(), strict=True)
    return [(trace.text(int(code)), count, spent) for code, count, spent in told]

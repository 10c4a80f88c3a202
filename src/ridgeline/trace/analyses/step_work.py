"""The work of a traced step: its FLOPs and bytes, what limits them, and their share of the step.

FLOPs are counted from the operators that the host called, each once (`owning`), as executed: a
checkpointed part counts each time it runs. On a GPU, only operators that launched device work
count. A replayed CUDA graph has no operators, so its work is missing; the coverage shows that.
"""

import re
from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.cost.formulas import find
from ridgeline.records.facts import Trust
from ridgeline.records.machine import Device
from ridgeline.records.step_work import StepWork, Uncounted
from ridgeline.records.trace import MAX_SHORT_NS, RooflineRow, Window, attained_share
from ridgeline.trace.analyses.busy import busy_spans, is_communication
from ridgeline.trace.analyses.recorded_calls import DTYPES, CallWork, OpWork, call_work, is_free
from ridgeline.trace.analyses.roofline import Hint, hint_of, roofline, row_of
from ridgeline.trace.columns import Codes, DeviceOps, Kind
from ridgeline.trace.host_states import is_collective_wait, is_input
from ridgeline.trace.intervals import Spans, covered, gaps, intersect, merge, subtract, union
from ridgeline.trace.links import Links, Rows, at_rows, beneath, distinct, own_time, sums_by
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.window import rows_in, started, step_spans

Mask = NDArray[np.bool_]


class Counted(Struct, frozen=True):
    """The operators that count in a step, with their work. Each covers the work of its callees."""

    rows: Rows
    """Rows of `trace.ops` in the steps."""
    works: tuple[CallWork, ...]
    which: Rows
    """The index into `works` for each of `rows`."""
    tf32: Mask
    """Whether the kernels of each of `rows` multiply float32 in TF32."""
    state: NDArray[np.int8]
    """NOTHING, OWNS or INSIDE for each of `trace.ops`, as `owning` returns."""

    def total(self, values: list[int]) -> float:
        """Return the sum over rows of a number for each of `works`."""
        calls = np.bincount(self.which, minlength=len(values)).tolist()
        return float(sum(value * count for value, count in zip(values, calls, strict=True)))

    def total_of(self, rows: Mask) -> float:
        """Return the FLOPs of products in the picked ones of `rows`."""
        calls = np.bincount(self.which[rows], minlength=len(self.works)).tolist()
        return float(sum(w.flops * count for w, count in zip(self.works, calls, strict=True)))

    def by_dtype(self) -> dict[str, float]:
        """Return the FLOPs of products by the type of arithmetic, the largest number first."""
        flops_by_dtype: dict[str, float] = {}
        for tf32 in (False, True):
            calls = np.bincount(self.which[self.tf32 == tf32], minlength=len(self.works))
            for work, count in zip(self.works, calls.tolist(), strict=True):
                if work.flops and count:
                    name = "tf32" if tf32 and work.dtype == "float32" else _ceiling_name(work.dtype)
                    flops_by_dtype[name] = flops_by_dtype.get(name, 0.0) + float(work.flops) * count
        return dict(sorted(flops_by_dtype.items(), key=lambda item: -item[1]))


@once_per_trace
def count_work(trace: Trace, links: Links, spans: Spans) -> Counted:
    ops = trace.ops
    in_steps = started(ops, spans) & (ops.shape >= 0)
    rows = np.flatnonzero(in_steps)
    pairs, which = distinct(ops.name[rows], ops.shape[rows]) if len(rows) else _NO_PAIRS
    usual = _usual_dtype(trace, rows)
    works_of_pairs = [call_work(trace.text(n), trace.shape(s), usual) for n, s in pairs.tolist()]
    works = tuple(dict.fromkeys(work for work in works_of_pairs if work is not None))
    index_of = {work: i for i, work in enumerate(works)}
    at = np.full(len(ops), -1, np.int64)
    at[rows] = np.array([-1 if w is None else index_of[w] for w in works_of_pairs], np.int64)[which]
    flops = np.zeros(len(ops))
    known = at >= 0
    flops[known] = np.array([float(w.flops) for w in works])[at[known]] if works else 0.0
    state = owning(links.op_parent, known, flops)
    owners = np.flatnonzero((state == OWNS) & _executed(trace, links))
    return Counted(
        rows=owners,
        works=works,
        which=at[owners],
        tf32=_tf32(trace, links)[owners],
        state=state,
    )


def _executed(trace: Trace, links: Links) -> Mask:
    """Return which operators did their work. On a GPU, those that launched nothing did not: they
    were abandoned, or worked on the host."""
    if not len(trace.device):
        return ~abandoned_ops(trace)
    every = np.ones(len(trace.device), bool)
    return np.asarray(beneath(links.op_parent, _operations_per_op(trace, links, every)) > 0, bool)


_NO_PAIRS = (np.empty((0, 2), np.int64), np.empty(0, np.int64))


def _operations_per_op(trace: Trace, links: Links, picked: Mask) -> Rows:
    """Return how many of the picked device operations each operator launched."""
    op = links.device_op[picked]
    return sums_by(op[op >= 0], 1, len(trace.ops))


def _tf32(trace: Trace, links: Links) -> Mask:
    device = trace.device
    kernels = trace.names_where(device.name, lambda name: hint_of(name).tf32)
    picked = kernels & (device.kind == Kind.KERNEL)
    return np.asarray(beneath(links.op_parent, _operations_per_op(trace, links, picked)) > 0, bool)


def _usual_dtype(trace: Trace, rows: Rows) -> str:
    """Return the floating type of most calls. It is assumed for lists of tensors, whose type is not
    recorded."""
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
_MIN_FLOPS_FACTOR = 1.001
"""An operator owns its work if it has more FLOPs than its callees by this factor: the formulas may
differ by little (a bias counted or not)."""


def owning(parent: Rows, known: NDArray[np.bool_], flops: NDArray[np.float64]) -> NDArray[np.int8]:
    """Return for each operator OWNS if its work counts, INSIDE if it runs in such an operator, else
    NOTHING. Callers stand before callees."""
    above = parent.tolist()
    own = np.where(known, flops, 0.0).tolist()
    below = [0.0] * len(above)
    for row in range(len(above) - 1, -1, -1):
        if above[row] >= 0:
            below[above[row]] += max(own[row], below[row])
    state = [NOTHING] * len(above)
    for row, is_known in enumerate(known.tolist()):
        if above[row] >= 0 and state[above[row]] != NOTHING:
            state[row] = INSIDE
        elif is_known and (
            own[row] > _MIN_FLOPS_FACTOR * below[row] or not (own[row] or below[row])
        ):
            state[row] = OWNS
    return np.array(state, np.int8)


_CHECKPOINT_FILE = r"(^|[/\\])torch[/\\]utils[/\\]checkpoint\.py\(\d+\): "
_SECOND_FORWARD = re.compile(_CHECKPOINT_FILE + "(backward|recompute_fn)$")
_RECOMPUTE_END = re.compile(_CHECKPOINT_FILE + "recompute_fn$")
_SAVE_TENSOR = re.compile(_CHECKPOINT_FILE + "pack_hook$")
_AUTOGRAD_BACKWARD = re.compile(r"(^|[/\\])torch[/\\]autograd[/\\]__init__\.py\(\d+\): backward$")


def second_forward(trace: Trace, rows: Rows) -> Mask:
    """Return which of these operators ran in the second forward of checkpointing, as far as Python
    stacks show it."""
    ops = trace.ops
    recomputed = np.zeros(len(rows), bool)
    for lane in np.unique(trace.frames.lane[_frames_named(trace, _SECOND_FORWARD)]).tolist():
        recomputing = _frame_spans(trace, _SECOND_FORWARD, lane)
        # reentrant checkpointing runs its second forward and its backward inside a backward
        inner = _frame_spans(trace, _AUTOGRAD_BACKWARD, lane, recomputing)
        at = ops.ts[rows]
        inside = covered(subtract(recomputing, inner), at, at + 1) > 0
        recomputed |= (ops.lane[rows] == lane) & inside
    return recomputed


def abandoned_ops(trace: Trace) -> Mask:
    """Return which operators were abandoned: checkpointing ends a second forward when its last
    tensor is saved, so operators that still ran then, with none started after them, did not
    finish."""
    frames, ops = trace.frames, trace.ops
    abandoned = np.zeros(len(ops), bool)
    saves = np.flatnonzero(_frames_named(trace, _SAVE_TENSOR))
    for frame in np.flatnonzero(_frames_named(trace, _RECOMPUTE_END)).tolist():
        start, end, lane = frames.ts[frame], frames.end[frame], frames.lane[frame]
        inside = saves[(frames.ts[saves] >= start) & (frames.end[saves] <= end)]
        inside = inside[frames.lane[inside] == lane]
        if not len(inside):
            continue
        last = inside[-1]
        first, stop = np.searchsorted(ops.ts, [start, end])
        rows = np.arange(first, stop)
        rows = rows[ops.lane[rows] == lane]
        if not (ops.ts[rows] >= frames.end[last]).any():
            abandoned[rows[ops.end[rows] >= frames.end[last]]] = True
    return abandoned


def _frames_named(trace: Trace, pattern: re.Pattern[str]) -> Mask:
    return np.asarray(
        trace.names_where(trace.frames.name, lambda name: pattern.search(name) is not None), bool
    )


def _frame_spans(
    trace: Trace, pattern: re.Pattern[str], lane: int, within: Spans | None = None
) -> Spans:
    """Return when functions with this name ran on a lane; only those that began inside `within`,
    if it is given."""
    frames = trace.frames
    rows = _frames_named(trace, pattern) & (frames.lane == lane)
    if within is not None:
        rows &= covered(within, frames.ts, frames.ts + 1) > 0
    return union(frames.ts[rows], frames.end[rows])


_MIN_COVERED_SHARE = 0.5
"""If a smaller share of the operator time has shapes and a formula, the totals are doubtful."""


class OperatorTime(Struct, frozen=True, kw_only=True):
    """The time of the steps, split by what it was spent on, and the operators in it."""

    wall_ns: int
    busy_ns: int
    input_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int
    """The rest of the time."""
    covered: float
    uncounted: tuple[Uncounted, ...]
    operators: int
    short_share: float
    rows: tuple[RooflineRow, ...]
    """The work with known shapes and formulas against its ceilings; `share` is of operator time."""


def step_work(trace: Trace, links: Links, window: Window, device: Device | None) -> StepWork:
    """Return the work of one step, as the mean of the window's steps. `device` has the ceilings; it
    is None if they are unknown."""
    spans = step_spans(trace, window)
    on_gpu = len(trace.device) > 0
    # what a Dataset computes in the program's own process is input, not work of the model
    counted_spans = spans if on_gpu else subtract(spans, input_spans(trace, links))
    counted = count_work(trace, links, counted_spans)
    steps = max(window.steps, 1)
    if on_gpu:
        time = device_time(trace, links, window, counted, device, steps)
    else:
        time = host_time(trace, links, spans, counted, device, steps)
    wall = max(time.wall_ns, 1)
    work_limits = limits(time.rows)
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
        compute_share=work_limits.compute_share,
        memory_share=work_limits.memory_share,
        attained=work_limits.attained,
        compute_attained=work_limits.compute_attained,
        memory_attained=work_limits.memory_attained,
        operators=time.operators / steps,
        short_share=time.short_share,
        notes=_notes(trace, window, counted, time),
        trust=_trust(trace, time),
    )


def _notes(trace: Trace, window: Window, counted: Counted, time: OperatorTime) -> tuple[str, ...]:
    notes = []
    if not window.steps:
        notes.append("no step is marked: the whole window counts as one step")
    if any(trace.device.graph > 0):
        notes.append(
            "kernels of replayed CUDA graphs have no operators: their FLOPs are not counted"
        )
    if any(entry.op == COMPILED or entry.op.startswith("triton_") for entry in time.uncounted):
        notes.append("kernels made by torch.compile have no formula: their FLOPs are not counted")
    if any(work.skipped for work in counted.works):
        notes.append("causal attention counts over the full square")
    return tuple(notes)


def _trust(trace: Trace, time: OperatorTime) -> Trust:
    if not (trace.ops.shape >= 0).any():
        return Trust(confidence="unreliable", why="no inputs of operators were recorded")
    if time.covered < _MIN_COVERED_SHARE:
        why = f"shapes and formulas cover {100 * time.covered:.0f} % of operator time"
        return Trust(confidence="doubtful", why=why)
    return Trust()


MAX_UNCOUNTED_OPERATORS = 10


class Bound(Struct, frozen=True):
    compute_share: float | None = None
    memory_share: float | None = None
    attained: float | None = None
    compute_attained: float | None = None
    memory_attained: float | None = None


def limits(rows: tuple[RooflineRow, ...]) -> Bound:
    """Return the shares of compute- and memory-bound time; None where no ceiling is known."""
    compute = [row for row in rows if row.bound == "compute"]
    memory = [row for row in rows if row.bound == "memory"]
    if not compute and not memory:
        return Bound()
    return Bound(
        compute_share=sum(row.share for row in compute),
        memory_share=sum(row.share for row in memory),
        attained=attained_share([*compute, *memory]),
        compute_attained=attained_share(compute),
        memory_attained=attained_share(memory),
    )


def uncounted(
    operators: Iterable[tuple[str, int, int]], total: int, steps: int
) -> tuple[Uncounted, ...]:
    """Return the uncounted operators with most time. `operators` has tuples of the operator, its
    calls and its time."""
    ordered = sorted(operators, key=lambda entry: -entry[2])[:MAX_UNCOUNTED_OPERATORS]
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
    inputs, exchanging = intersect(input_spans(trace, links), spans), _communication(trace, spans)
    in_steps = started(ops, subtract(spans, inputs))
    operator = in_steps & trace.names_where(ops.name, _is_operator)
    compiled, compiled_calls = _compiled(trace, spans)
    owned = ops.dur[counted.rows]
    own = own_time(links.op_parent, ops.dur)
    is_free_op = trace.names_where(ops.name, is_free) & operator & (counted.state == NOTHING)
    unknown = _unknown_work(trace, links, operator, counted, own)
    spent_free, spent_unknown = int(own[is_free_op].sum()), int(own[unknown].sum())
    total = max(int(owned.sum()) + spent_free + spent_unknown + compiled.total, 1)
    computing = operator & ~_inside_any(
        links.op_parent, trace.names_where(ops.name, _is_communication)
    )
    working = merge(union(ops.ts[computing], ops.end[computing]), compiled)
    busy = subtract(intersect(working, spans), inputs)
    # gloo's threads work beside the operators: only time without operators is waiting
    exchanging = subtract(subtract(exchanging, inputs), busy)
    left = spans.total - merge(busy, inputs, exchanging).total
    durations = np.concatenate([owned, own[is_free_op], own[unknown]])
    return OperatorTime(
        wall_ns=spans.total,
        busy_ns=busy.total,
        input_ns=inputs.total,
        communication_ns=exchanging.total,
        copy_ns=0,
        idle_ns=max(left, 0),
        covered=(int(owned.sum()) + spent_free) / total,
        uncounted=uncounted(
            [*_by_name(trace, trace.ops.name[unknown], own[unknown]),
             (COMPILED, compiled_calls, compiled.total)],
            total, steps,
        ),
        operators=int(_outermost(links.op_parent, operator).sum()),
        short_share=float(durations[durations < MAX_SHORT_NS].sum()) / total,
        rows=_rows(counted, owned, total, device),
    )  # fmt: skip


def _is_operator(name: str) -> bool:
    """Return whether a name is that of an operator. Communication, the spans of the autograd engine
    and the nodes of the graph (`AddmmBackward0`) are none."""
    if "::" not in name or name.startswith(("autograd::", "torch::autograd")):
        return False
    return not _COLLECTIVE.search(name)


def _unknown_work(trace: Trace, links: Links, operator: Mask, counted: Counted, own: Rows) -> Mask:
    """Return which operators do work that is not counted: they are in no counted operator, and call
    no operator that works or take most of the time themselves."""
    free = trace.names_where(trace.ops.name, is_free)
    parent = links.op_parent
    working = np.flatnonzero(~free & (parent >= 0))
    calls_work = np.zeros(len(parent), bool)
    calls_work[parent[working]] = True
    formulated = trace.names_where(trace.ops.name, lambda name: find(name) is not None)
    here = operator & ~free & (counted.state == NOTHING)
    mostly = _for_most_calls(trace.ops.name, here, 2 * own > trace.ops.dur)
    return np.asarray(here & (~calls_work | (~formulated & mostly)), bool)


def _for_most_calls(names: Codes, rows: Mask, passes: Mask) -> Mask:
    """Return for each row whether `passes` holds for most calls of its name: a single call may be
    slow because it lost the processor."""
    most = int(names.max(initial=0)) + 1
    calls, passing = (np.bincount(names[mask], minlength=most) for mask in (rows, rows & passes))
    return np.asarray((2 * passing > calls)[names], bool)


def _outermost(parent: Rows, operator: Mask) -> Mask:
    return np.asarray(operator & ~_inside_any(parent, operator), bool)


def _inside_any(parent: Rows, outer: Mask) -> Mask:
    """Return which operators run inside one of the `outer` operators, at any depth."""
    above, is_outer = parent.tolist(), outer.tolist()
    inside = [False] * len(above)
    for row, caller in enumerate(above):
        if caller >= 0:
            inside[row] = inside[caller] or is_outer[caller]
    return np.array(inside, bool)


def _by_name(trace: Trace, codes: Codes, spent_ns: Rows) -> list[tuple[str, int, int]]:
    """Return each name with the number of its rows and their time."""
    names, name_of_row = np.unique(codes, return_inverse=True)
    ns = sums_by(name_of_row, spent_ns, len(names))
    calls = sums_by(name_of_row, 1, len(names))
    columns = zip(names.tolist(), calls.tolist(), ns.tolist(), strict=True)
    return [(trace.text(name), count, spent) for name, count, spent in columns]


def _rows(
    counted: Counted, owned: Rows, total: int, device: Device | None
) -> tuple[RooflineRow, ...]:
    size = len(counted.works)
    ns = sums_by(counted.which, owned, size)
    calls = sums_by(counted.which, 1, size)
    columns = zip(counted.works, calls.tolist(), ns.tolist(), strict=True)
    return tuple(
        row_of("", "", OpWork(work.executed, work.bytes, work.dtype), Hint(), count, spent, total,
               device)
        for work, count, spent in columns
        if count and (work.executed or work.bytes)
    )  # fmt: skip


def input_spans(trace: Trace, links: Links) -> Spans:
    """Return the time in which the main thread waited for a batch or made a batch."""
    spans = [
        union(table.ts[rows], table.end[rows])
        for table in (trace.annotations, trace.frames)
        for rows in [trace.names_where(table.name, is_input) & (table.lane == links.main_lane)]
    ]
    return merge(*spans)


def _communication(trace: Trace, spans: Spans) -> Spans:
    """Return the time in which this rank exchanged data or waited for other ranks; nothing for a
    job of one rank."""
    is_single_rank = trace.metadata.world_size == 1
    exchanges = [
        union(table.ts[rows], table.end[rows])
        for table in (() if is_single_rank else (trace.ops, trace.annotations))
        for rows in [trace.names_where(table.name, _is_communication)]
    ]
    return intersect(merge(*exchanges), spans)


def _is_communication(name: str) -> bool:
    return bool(_COLLECTIVE.search(name)) or is_collective_wait(name)


def _compiled(trace: Trace, spans: Spans) -> tuple[Spans, int]:
    """Return the time and the number of kernels that inductor made: by their calls in Python
    stacks; without stacks, the time in compiled graphs that no operator covers."""
    frames, marks = trace.frames, trace.annotations
    graphs = trace.names_where(marks.name, lambda name: "Call CompiledFxGraph" in name)
    inside = union(marks.ts[graphs], marks.end[graphs])
    called = trace.names_where(frames.name, lambda name: bool(_KERNEL_FRAME.match(name)))
    called &= covered(inside, frames.ts, frames.ts + 1) > 0
    if called.any():
        called &= started(frames, spans)
        return intersect(union(frames.ts[called], frames.end[called]), spans), int(called.sum())
    rows = trace.names_where(trace.ops.name, _is_operator)
    operators = union(trace.ops.ts[rows], trace.ops.end[rows])
    graph_calls = int((graphs & started(marks, spans)).sum())
    return intersect(subtract(inside, operators), spans), graph_calls


_ALL_ROWS = 1_000_000
_OVER_LINK = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Host -> Device|Device -> Host")


def device_time(
    trace: Trace, links: Links, window: Window, counted: Counted, device: Device | None, steps: int
) -> OperatorTime:
    operations = _busiest(trace, window)
    busy = busy_spans(operations, window)
    is_kernel = operations.kind == Kind.KERNEL
    communicates = is_kernel & trace.names_where(operations.name, is_communication)
    communication = busy_spans(operations.take(communicates), window)
    computing = busy_spans(operations.take(is_kernel & ~communicates), window)
    copies = (operations.kind == Kind.MEMCPY) & trace.names_where(operations.name, _over_link)
    waiting = intersect(input_spans(trace, links), gaps(busy, window.start_ns, window.end_ns))
    rows = rows_in(trace.device, window)
    rows = rows[~_link_bound(trace)[rows]]
    dur = trace.device.dur[rows]
    spent = max(int(dur.sum()), 1)
    launcher = links.device_op[rows]
    known = (launcher >= 0) & (at_rows(counted.state, launcher) != NOTHING)
    roofline_rows = roofline(trace, links, window, device, _ALL_ROWS).rows
    return OperatorTime(
        wall_ns=window.ns,
        busy_ns=busy.total,
        input_ns=waiting.total,
        communication_ns=subtract(communication, computing).total,
        copy_ns=subtract(busy_spans(operations.take(copies), window), computing).total,
        idle_ns=max(window.ns - busy.total - waiting.total, 0),
        covered=int(dur[known].sum()) / spent,
        uncounted=uncounted(_device_by_name(trace, links, rows[~known]), spent, steps),
        operators=len(rows_in(operations, window)),
        short_share=float(dur[dur < MAX_SHORT_NS].sum()) / spent,
        rows=tuple(
            msgspec.structs.replace(row, share=row.device_ns / spent) for row in roofline_rows
        ),
    )


def _link_bound(trace: Trace) -> NDArray[np.bool_]:
    """Return which operations are collectives or copies between host and device. The speed of links
    limits them, so they do not count as work of operators."""
    ops = trace.device
    talks = trace.names_where(ops.name, is_communication) & (ops.kind == Kind.KERNEL)
    copies = (ops.kind == Kind.MEMCPY) & trace.names_where(ops.name, _over_link)
    return np.asarray(talks | copies, bool)


def _busiest(trace: Trace, window: Window) -> DeviceOps:
    """Return the operations of the device that worked longest: as a rule, a process drives one
    device."""
    ops = trace.device
    devices = [ops.take(ops.device == number) for number in np.unique(ops.device)]
    return max(devices, key=lambda operations: busy_spans(operations, window).total)


def _over_link(name: str) -> bool:
    return _OVER_LINK.search(name) is not None


def _device_by_name(trace: Trace, links: Links, rows: Rows) -> list[tuple[str, int, int]]:
    """Return device work by the operator that launched it, else by its own name."""
    op = links.device_op[rows]
    codes = np.where(op >= 0, at_rows(trace.ops.name, op), trace.device.name[rows])
    return _by_name(trace, codes, trace.device.dur[rows])

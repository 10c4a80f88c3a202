"""Operator time of steps that ran on the CPU.

An operator that answers for its work counts whole, with its callees. One without a formula counts
with its own time if that is usually most of it, or it calls nothing beyond views and allocations:
else it has handed its work on (`aten::conv2d`). What inductor compiled shows as a Python call of
`kernel` inside its generated file, and has no formula.
"""

import re

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.formulas import find
from ridgeline.records.machine import Device
from ridgeline.records.trace import RooflineRow
from ridgeline.trace.analyses.call_work import is_free
from ridgeline.trace.analyses.op_work import OpWork
from ridgeline.trace.analyses.operator_time import SHORT_NS, OperatorTime, uncounted
from ridgeline.trace.analyses.roofline_row import Hint, row_of
from ridgeline.trace.analyses.step_counts import Counted, started
from ridgeline.trace.analyses.tree import own_time
from ridgeline.trace.analyses.work_owners import NOTHING
from ridgeline.trace.columns import Codes
from ridgeline.trace.host_names import is_collective_wait, is_input
from ridgeline.trace.intervals import Spans, covered, intersect, merge, subtract, union
from ridgeline.trace.links import Links, Rows
from ridgeline.trace.trace import Trace

Mask = NDArray[np.bool_]
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
        short_share=float(brief[brief < SHORT_NS].sum()) / total,
        rows=_rows(counted, owned, total, device),
    )  # fmt: skip


def _is_operator(name: str) -> bool:
    """Not the engine's own spans, not nodes of the graph (`AddmmBackward0`), no communication."""
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
    """Called by one of those, at any depth: what a collective copies is the collective's."""
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
    """When the main thread waited for, or made, a batch."""
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
    """Kernels inductor made: by Python's calls of them, else the graph's span without operators."""
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

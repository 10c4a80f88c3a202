"""How far each operator is from what the device can do, from the inputs it was recorded with.

Copies between host and device and collectives are bound by links, not by the device's memory: they
count as not covered.
"""

import re

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.machine import Device
from ridgeline.records.trace import Roofline, RooflineRow, Window
from ridgeline.records.trust import Trust
from ridgeline.trace.analyses.categories import category_of
from ridgeline.trace.analyses.distinct import distinct
from ridgeline.trace.analyses.op_work import TOLD_BY_BACKWARD, OpWork, op_work
from ridgeline.trace.analyses.recorded_call import sizes_of
from ridgeline.trace.analyses.roofline_owners import owners, whole
from ridgeline.trace.analyses.roofline_row import Hint, hint_of, row_of
from ridgeline.trace.analyses.shape_text import shape_text
from ridgeline.trace.analyses.within import within
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links, at_rows
from ridgeline.trace.trace import Trace

Rows = NDArray[np.int64]
Results = dict[tuple[int, int], tuple[int, ...]]
"""Sizes of results by (name, shape) codes."""
MOST_UNCOVERED = 10
_GRADIENT_AT = {
    "cudnn_convolution_backward": 1,
    "miopen_convolution_backward": 1,
    "convolution_backward": 0,
}
"""Where the gradient of the result stands; the input is the other of the first two."""
_SHARES = re.compile(r"aten::(?:cudnn|miopen)_convolution_backward")


class _Answers(Struct, frozen=True):
    owner: Rows
    """For each device operation in the window the operator that answers for it; -1: none."""
    rows: Rows
    """Those device operations, as rows of `trace.device`."""
    results: Results


def roofline(
    trace: Trace, links: Links, window: Window, device: Device | None, limit: int = 50
) -> Roofline:
    """Operators by device time; without a device rates only."""
    name = "" if device is None else device.name
    rows = within(trace.device, window)
    total = int(trace.device.dur[rows].sum())
    if not total:
        return Roofline(device=name, trust=_doubt("no device work in the window"))
    answers = _answers(trace, links, window)
    table, covered = _rows(trace, answers, device, total)
    left = _uncovered(trace, links, answers, covered)
    known = int(trace.device.dur[answers.rows[covered]].sum())
    return Roofline(
        device=name,
        rows=tuple(sorted(table, key=lambda row: -row.device_ns)[:limit]),
        covered=known / total,
        uncovered=left,
        trust=_trust(trace, known / total),
    )


def _answers(trace: Trace, links: Links, window: Window) -> _Answers:
    device, ops = trace.device, trace.ops
    op = np.where(_on_device(trace), links.device_op, -1)
    inside = within(device, window)
    launches, present = np.zeros((2, len(ops)), np.int64)
    np.add.at(launches, op[op >= 0], 1)
    here = op[inside]
    np.add.at(present, here[here >= 0], 1)
    results = _told_by_backward(trace)
    known = _known(trace, links, launches, results)
    owner = owners(links.op_parent, known, launches)
    shares = trace.names_where(ops.name, lambda name: _SHARES.fullmatch(name) is not None)
    complete = whole(links.op_parent, owner, launches, present, shares)
    owner = np.where((owner >= 0) & complete[np.maximum(owner, 0)], owner, -1)
    return _Answers(np.where(here >= 0, at_rows(owner, here), -1), inside, results)


def _on_device(trace: Trace) -> NDArray[np.bool_]:
    """Kernels that compute, and copies and fills inside the device."""
    device = trace.device
    kernel = trace.names_where(device.name, lambda name: category_of(name) != "communication")
    copy = trace.names_where(
        device.name, lambda name: name.startswith(("Memcpy DtoD", "CopyDeviceToDevice"))
    )
    kinds = device.kind
    return np.where(kinds == Kind.KERNEL, kernel, (kinds == Kind.MEMSET) | copy).astype(bool)


def _known(trace: Trace, links: Links, launches: Rows, results: Results) -> NDArray[np.bool_]:
    """Operators that launch, or whose callees do, and whose work a formula tells."""
    asked = np.zeros(len(launches), bool)
    rows = np.flatnonzero(launches > 0)
    while len(rows):
        asked[rows] = True
        above = links.op_parent[rows]
        rows = np.unique(above[above >= 0])
        rows = rows[~asked[rows]]
    rows = np.flatnonzero(asked & (trace.ops.shape >= 0))
    known = np.zeros(len(launches), bool)
    if len(rows):
        pairs, which = distinct(trace.ops.name[rows], trace.ops.shape[rows])
        # lists get their type from the kernel later; any will do to see whether a formula fits
        told = [_work(trace, n, s, "float32", results) is not None for n, s in pairs.tolist()]
        known[rows] = np.array(told, bool)[which]
    return known


def _work(trace: Trace, name: int, shape: int, list_dtype: str, results: Results) -> OpWork | None:
    return op_work(trace.text(name), trace.shape(shape), list_dtype, results.get((name, shape)))


def _told_by_backward(trace: Trace) -> Results:
    """Sizes convolutions gave, where strides were not recorded but the same trace has gradients.

    Keyed by (name, shape) codes of the forward; only where all gradients of such inputs agree.
    """
    ops = trace.ops
    gradients: dict[str, set[tuple[int, ...]]] = {}
    forward: list[tuple[int, int, str]] = []
    for name, code in distinct(ops.name, ops.shape)[0].tolist():
        op = trace.text(name).partition("::")[2]
        backward = _GRADIENT_AT.get(op)
        if code < 0 or (backward is None and op not in TOLD_BY_BACKWARD):
            continue
        dims = trace.shape(code).dims
        gradient = sizes_of(dims[backward]) if backward is not None and len(dims) > 2 else None
        if backward is not None and gradient is not None:
            gradients.setdefault(f"{dims[1 - backward]}{dims[2]}", set()).add(gradient)
        elif backward is None and len(dims) > 1 and not trace.shape(code).concrete:
            forward.append((name, code, f"{dims[0]}{dims[1]}"))
    return {
        (name, code): next(iter(gradients[inputs]))
        for name, code, inputs in forward
        if len(gradients.get(inputs, ())) == 1
    }


def _rows(
    trace: Trace, answers: _Answers, device: Device | None, total: int
) -> tuple[list[RooflineRow], NDArray[np.bool_]]:
    """A row for each operator, inputs and sort of kernel; and which device work they cover."""
    held = np.flatnonzero(answers.owner >= 0)
    covered = np.zeros(len(answers.rows), bool)
    if not len(held):
        return [], covered
    calls, call = np.unique(answers.owner[held], return_inverse=True)
    spent = np.zeros(len(calls), np.int64)
    np.add.at(spent, call, trace.device.dur[answers.rows[held]])
    sort, hints = _hints(trace, answers.rows[held], call, len(calls))
    groups, group = distinct(trace.ops.name[calls], trace.ops.shape[calls], sort)
    ns, count = np.zeros((2, len(groups)), np.int64)
    np.add.at(ns, group, spent)
    np.add.at(count, group, 1)
    told = np.zeros(len(groups), bool)
    sums: dict[tuple[int, str, OpWork, Hint], list[int]] = {}
    for i, (name, code, which) in enumerate(groups.tolist()):
        work = _work(trace, name, code, hints[which].list_dtype, answers.results)
        if work is None:
            continue
        told[i] = True
        # strides and scalars differ where the work does not: one row
        key = (name, shape_text(trace.shape(code)), work, hints[which].for_work(work))
        entry = sums.setdefault(key, [0, 0])
        entry[0] += int(count[i])
        entry[1] += int(ns[i])
    covered[held] = told[group[call]]
    table = [
        row_of(trace.text(name), text, work, hint, count_, ns_, total, device)
        for (name, text, work, hint), (count_, ns_) in sums.items()
    ]
    return table, covered


def _hints(trace: Trace, rows: Rows, call: Rows, calls: int) -> tuple[Rows, list[Hint]]:
    """For each call what its kernels' names add: the longest decides, but any may be a Winograd or
    the TF32 product between two copies of layout."""
    names, which = np.unique(trace.device.name[rows], return_inverse=True)
    named = [hint_of(trace.text(int(name))) for name in names]
    longest = np.zeros(calls, np.int64)
    order = np.argsort(trace.device.dur[rows], kind="stable")  # the longest is written last
    longest[call[order]] = which[order]
    fewer, tf32 = np.zeros(calls, np.int64), np.zeros(calls, np.int64)
    fewer[call[np.array([hint.fewer_flops for hint in named])[which]]] = 1
    tf32[call[np.array([hint.tf32 for hint in named])[which]]] = 1
    found, pair = distinct(longest, fewer, tf32)
    hints = [
        msgspec.structs.replace(named[n], fewer_flops=bool(f), tf32=bool(t))
        for n, f, t in found.tolist()
    ]
    places = {hint: i for i, hint in enumerate(dict.fromkeys(hints))}
    return np.array([places[hint] for hint in hints], np.int64)[pair], list(places)


def _uncovered(
    trace: Trace, links: Links, answers: _Answers, covered: NDArray[np.bool_]
) -> tuple[tuple[str, int], ...]:
    """The largest left out, by operator; by the work's own name where none launched it."""
    rows = answers.rows[~covered]
    if not len(rows):
        return ()
    op = np.where(_on_device(trace)[rows], links.device_op[rows], -1)
    by = np.where(
        op >= 0, at_rows(trace.ops.name, op), -1 - trace.device.name[rows].astype(np.int64)
    )
    found, at = np.unique(by, return_inverse=True)
    spent = np.zeros(len(found), np.int64)
    np.add.at(spent, at, trace.device.dur[rows])
    best = np.argsort(-spent, kind="stable")[:MOST_UNCOVERED].tolist()
    return tuple((trace.text(max(int(found[i]), -1 - int(found[i]))), int(spent[i])) for i in best)


def _doubt(why: str) -> Trust:
    return Trust(confidence="unreliable", why=why)


def _trust(trace: Trace, covered: float) -> Trust:
    if not (trace.ops.shape >= 0).any():
        return _doubt("no inputs were recorded: profile with record_shapes=True")
    if covered < 0.5:
        why = f"shapes and formulas cover {100 * covered:.0f} % of the device time"
        return Trust(confidence="doubtful", why=why)
    return Trust()

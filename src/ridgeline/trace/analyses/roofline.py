"""Works out how far each operator is from the ceilings of the device, by its recorded inputs.

Copies between host and device and collectives are limited by links, not by the device's memory, so
they count as not covered.
"""

import re
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.cost.formulas.call import ITEM_BYTES
from ridgeline.records.facts import Trust
from ridgeline.records.machine import MAX_SHARE_OF_CEILING, Ceiling, Device
from ridgeline.records.trace import Roofline, RooflineRow, Window
from ridgeline.trace.analyses.kernels import category_of
from ridgeline.trace.analyses.recorded_calls import (
    SIZED_BY_BACKWARD,
    OpWork,
    op_work,
    shape_text,
    sizes_of,
)
from ridgeline.trace.columns import Kind
from ridgeline.trace.links import Links, Rows, at_rows, beneath, distinct, sums_by
from ridgeline.trace.trace import Trace, once_per_trace
from ridgeline.trace.window import rows_in

Results = dict[tuple[int, int], tuple[int, ...]]
"""Sizes of results by (name, shape) codes."""
MAX_UNCOVERED_OPERATORS = 10
_GRADIENT_AT = {
    "cudnn_convolution_backward": 1,
    "miopen_convolution_backward": 1,
    "convolution_backward": 0,
}
"""The argument that is the gradient of the result. The other one of the first two is the input."""
_SPLIT_BACKWARD = re.compile(r"aten::(?:cudnn|miopen)_convolution_backward")


class Hint(Struct, frozen=True):
    """The facts that the names of an operator's kernels add to its recorded inputs."""

    tf32: bool = False
    fewer_flops: bool = False
    """Winograd or FFT: fewer multiplications than the formula counts."""
    list_dtype: str = ""
    """The type of lists of tensors, which traces do not record."""
    width_only: bool = False
    """Whether only the width of `list_dtype` is right: the kernel copies items of unknown type."""

    def for_work(self, work: OpWork) -> "Hint":
        """Return the hint without the facts that this work does not need, so that equal rows become
        one row."""
        return Hint(
            tf32=self.tf32 and work.dtype == "float32",
            fewer_flops=self.fewer_flops,
            list_dtype=self.list_dtype if work.dtype_of_list else "",
            width_only=self.width_only and work.dtype_of_list,
        )


class _Owners(Struct, frozen=True):
    owner: Rows
    """The operator whose work each device operation in the window does; -1: none."""
    rows: Rows
    """The rows of these device operations in `trace.device`."""
    results: Results


def roofline(
    trace: Trace, links: Links, window: Window, device: Device | None, limit: int = 50
) -> Roofline:
    """Return the operators by device time. Without a known device they have rates, and no
    ceilings."""
    name = "" if device is None else device.name
    rows = rows_in(trace.device, window)
    total = int(trace.device.dur[rows].sum())
    if not total:
        return Roofline(
            device=name, trust=_unreliable("no-device-work", "no device work in the window")
        )
    operators = _owners(trace, links, window)
    table, covered = _rows(trace, operators, device, total)
    left = _uncovered(trace, links, operators, covered)
    known = int(trace.device.dur[operators.rows[covered]].sum())
    return Roofline(
        device=name,
        rows=tuple(sorted(table, key=lambda row: -row.device_ns)[:limit]),
        covered=known / total,
        uncovered=left,
        ceilings=device.ceilings if device is not None else (),
        trust=_trust(trace, known / total),
    )


@once_per_trace
def _owners(trace: Trace, links: Links, window: Window) -> _Owners:
    device, ops = trace.device, trace.ops
    op = np.where(_on_device(trace), links.device_op, -1)
    inside = rows_in(device, window)
    launches, present = np.zeros((2, len(ops)), np.int64)
    np.add.at(launches, op[op >= 0], 1)
    inside_op = op[inside]
    np.add.at(present, inside_op[inside_op >= 0], 1)
    results = _results_from_gradients(trace)
    known = _known(trace, links, launches, results)
    owner = owners(links.op_parent, known, launches)
    shares = trace.names_where(ops.name, lambda name: _SPLIT_BACKWARD.fullmatch(name) is not None)
    complete = owns_all_work(links.op_parent, owner, launches, present, shares)
    owner = np.where((owner >= 0) & complete[np.maximum(owner, 0)], owner, -1)
    return _Owners(np.where(inside_op >= 0, at_rows(owner, inside_op), -1), inside, results)


def _on_device(trace: Trace) -> NDArray[np.bool_]:
    """Return the kernels that compute, and the copies and fills inside the device."""
    device = trace.device
    kernel = trace.names_where(device.name, lambda name: category_of(name) != "communication")
    copy = trace.names_where(
        device.name, lambda name: name.startswith(("Memcpy DtoD", "CopyDeviceToDevice"))
    )
    kinds = device.kind
    return np.where(kinds == Kind.KERNEL, kernel, (kinds == Kind.MEMSET) | copy).astype(bool)


def _known(trace: Trace, links: Links, launches: Rows, results: Results) -> NDArray[np.bool_]:
    """Return the operators that launch work, or whose callees do, and whose work a formula
    knows."""
    launching = np.zeros(len(launches), bool)
    rows = np.flatnonzero(launches > 0)
    while len(rows):
        launching[rows] = True
        above = links.op_parent[rows]
        rows = np.unique(above[above >= 0])
        rows = rows[~launching[rows]]
    rows = np.flatnonzero(launching & (trace.ops.shape >= 0))
    known = np.zeros(len(launches), bool)
    if len(rows):
        pairs, which = distinct(trace.ops.name[rows], trace.ops.shape[rows])
        # lists get their type from the kernel later; any will do to see whether a formula fits
        is_known_pair = [
            _work(trace, n, s, "float32", results) is not None for n, s in pairs.tolist()
        ]
        known[rows] = np.array(is_known_pair, bool)[which]
    return known


def _work(trace: Trace, name: int, shape: int, list_dtype: str, results: Results) -> OpWork | None:
    return op_work(trace.text(name), trace.shape(shape), list_dtype, results.get((name, shape)))


def _results_from_gradients(trace: Trace) -> Results:
    """Return the result sizes of convolutions without recorded strides, from their gradients.

    The keys are (name, shape) codes of the forward. A size is returned only if all gradients for
    such inputs agree.
    """
    ops = trace.ops
    gradients: dict[str, set[tuple[int, ...]]] = {}
    forward: list[tuple[int, int, str]] = []
    for name, code in distinct(ops.name, ops.shape)[0].tolist():
        op = trace.text(name).partition("::")[2]
        backward = _GRADIENT_AT.get(op)
        if code < 0 or (backward is None and op not in SIZED_BY_BACKWARD):
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
    trace: Trace, operators: _Owners, device: Device | None, total: int
) -> tuple[list[RooflineRow], NDArray[np.bool_]]:
    """Return a row for each operator, inputs and kind of kernel, and which device work the rows
    cover."""
    owned = np.flatnonzero(operators.owner >= 0)
    covered = np.zeros(len(operators.rows), bool)
    if not len(owned):
        return [], covered
    calls, call = np.unique(operators.owner[owned], return_inverse=True)
    spent = sums_by(call, trace.device.dur[operators.rows[owned]], len(calls))
    sort, hints = _hints(trace, operators.rows[owned], call, len(calls))
    groups, group = distinct(trace.ops.name[calls], trace.ops.shape[calls], sort)
    ns = sums_by(group, spent, len(groups))
    count = sums_by(group, 1, len(groups))
    has_work = np.zeros(len(groups), bool)
    sums: dict[tuple[int, str, OpWork, Hint], list[int]] = {}
    for i, (name, code, which) in enumerate(groups.tolist()):
        work = _work(trace, name, code, hints[which].list_dtype, operators.results)
        if work is None:
            continue
        has_work[i] = True
        # strides and scalars differ where the work does not: one row
        key = (name, shape_text(trace.shape(code)), work, hints[which].for_work(work))
        entry = sums.setdefault(key, [0, 0])
        entry[0] += int(count[i])
        entry[1] += int(ns[i])
    covered[owned] = has_work[group[call]]
    table = [
        row_of(trace.text(name), text, work, hint, count_, ns_, total, device)
        for (name, text, work, hint), (count_, ns_) in sums.items()
    ]
    return table, covered


def _hints(trace: Trace, rows: Rows, call: Rows, calls: int) -> tuple[Rows, list[Hint]]:
    """Return the number of each call's hint, and the hints. The longest kernel sets the type; any
    kernel may show a Winograd or TF32 product, which may stand between two copies of layout."""
    names, which = np.unique(trace.device.name[rows], return_inverse=True)
    named = [hint_of(trace.text(int(name))) for name in names]
    longest = np.zeros(calls, np.int64)
    order = np.argsort(trace.device.dur[rows], kind="stable")  # the longest is written last
    longest[call[order]] = which[order]
    fewer, tf32 = np.zeros(calls, np.int64), np.zeros(calls, np.int64)
    fewer[call[np.array([hint.fewer_flops for hint in named])[which]]] = 1
    tf32[call[np.array([hint.tf32 for hint in named])[which]]] = 1
    combinations, pair = distinct(longest, fewer, tf32)
    hints = [
        msgspec.structs.replace(named[n], fewer_flops=bool(f), tf32=bool(t))
        for n, f, t in combinations.tolist()
    ]
    places = {hint: i for i, hint in enumerate(dict.fromkeys(hints))}
    return np.array([places[hint] for hint in hints], np.int64)[pair], list(places)


def _uncovered(
    trace: Trace, links: Links, operators: _Owners, covered: NDArray[np.bool_]
) -> tuple[tuple[str, int], ...]:
    """Return the largest operators that are left out; without an operator, the name of the work
    itself."""
    rows = operators.rows[~covered]
    if not len(rows):
        return ()
    op = np.where(_on_device(trace)[rows], links.device_op[rows], -1)
    code = np.where(
        op >= 0, at_rows(trace.ops.name, op), -1 - trace.device.name[rows].astype(np.int64)
    )
    codes, index = np.unique(code, return_inverse=True)
    spent = sums_by(index, trace.device.dur[rows], len(codes))
    best = np.argsort(-spent, kind="stable")[:MAX_UNCOVERED_OPERATORS].tolist()
    return tuple((trace.text(max(int(codes[i]), -1 - int(codes[i]))), int(spent[i])) for i in best)


def _unreliable(code: str, why: str) -> Trust:
    return Trust(confidence="unreliable", why=why, codes=(code,))


def _trust(trace: Trace, covered: float) -> Trust:
    if not (trace.ops.shape >= 0).any():
        return _unreliable("no-shapes", "no inputs were recorded: profile with record_shapes=True")
    if covered < 0.5:
        why = f"shapes and formulas cover {100 * covered:.0f} % of the device time"
        return Trust(confidence="doubtful", why=why, codes=("few-formulas",))
    return Trust()


_TF32 = re.compile(r"tf32|tensorop|s1688|xmma_\w*tf32", re.IGNORECASE)
_WINOGRAD = re.compile(r"winograd|fft", re.IGNORECASE)
_WORDS = ((r"BFloat16|bf16", "bfloat16"), (r"Half|f16\b|fp16", "float16"),
          (r"OpaqueType<2u?>", "float16"), (r"OpaqueType<4u?>", "float32"),
          (r"OpaqueType<8u?>", "float64"), (r"<float\b|\bfloat\b", "float32"),
          (r"\bdouble\b", "float64"))  # fmt: skip


def hint_of(kernel: str) -> Hint:
    dtype_named = next((dtype for pattern, dtype in _WORDS if re.search(pattern, kernel)), "")
    return Hint(
        tf32=_TF32.search(kernel) is not None,
        fewer_flops=_WINOGRAD.search(kernel) is not None,
        list_dtype=dtype_named,
        width_only="OpaqueType" in kernel,
    )


def row_of(
    op: str, shape: str, work: OpWork, hint: Hint, count: int, ns: int, total: int,
    device: Device | None,
) -> RooflineRow:  # fmt: skip
    dtype = "tf32" if work.dtype == "float32" and hint.tf32 and work.flops else work.dtype
    if work.dtype_of_list and hint.width_only:
        dtype = f"{8 * ITEM_BYTES[work.dtype]}-bit"
    seconds = ns / 1e9
    flops_s, bytes_s = (v * count / seconds if ns else 0.0 for v in (work.flops, work.bytes))
    intensity = work.flops / work.bytes if work.bytes else 0.0
    bound, ceiling, source = _bound(device, dtype, intensity)
    attained = None
    if ceiling is not None and ns:
        attained = (flops_s if bound == "compute" else bytes_s) / ceiling.value
    over = attained is not None and attained > MAX_SHARE_OF_CEILING
    return RooflineRow(
        op=op,
        shape=shape,
        dtype=dtype,
        count=count,
        device_ns=ns,
        share=ns / max(total, 1),
        flops=float(work.flops),
        bytes=float(work.bytes),
        flops_s=flops_s,
        bytes_s=bytes_s,
        intensity=intensity,
        bound=bound,
        attained=None if over else attained,
        over_ceiling=over,
        ceiling=None if ceiling is None else ceiling.value,
        source=source,
        note=_note(over, bound, hint),
    )


def _bound(
    device: Device | None, dtype: str, intensity: float
) -> tuple[Literal["compute", "memory", ""], Ceiling | None, str]:
    if device is None:
        return "", None, "the device is not known"
    arithmetic = device.ceiling("matmul", _arithmetic(dtype))
    memory = device.ceiling("copy")
    if memory is None:
        doubtful = device.doubtful_ceiling("copy")
        why = "was measured on a busy machine" if doubtful else "is not known"
        return "", None, f"the bandwidth of this device {why}"
    if arithmetic is not None and intensity > arithmetic.value / memory.value:
        return "compute", arithmetic, arithmetic.source
    # without a peak for the type, anything with many operations a byte cannot be placed
    if arithmetic is None and intensity > _MAX_UNPLACED_INTENSITY:
        doubtful = device.doubtful_ceiling("matmul", _arithmetic(dtype))
        why = "was measured on a busy machine" if doubtful else "is not known"
        return "", None, f"the {dtype} peak of this device {why}"
    return "memory", memory, memory.source


_MAX_UNPLACED_INTENSITY = 8.0
"""The largest intensity, in FLOPs per byte, that is called memory-bound if the compute peak is
unknown. Elementwise work has less; the ridge of every listed device has more (T4 float32: 25)."""


def _arithmetic(dtype: str) -> str:
    if dtype.startswith("float8"):
        return "float8"
    return {"complex64": "float32", "complex128": "float64", "uint8": "int8"}.get(dtype, dtype)


def _note(over: bool, bound: str, hint: Hint) -> str:
    if hint.fewer_flops and bound == "compute":
        reason = "the kernel (Winograd, FFT) multiplies less than the formula counts"
        return f"over the ceiling: {reason}" if over else reason
    if not over:
        return ""
    if bound == "memory":
        return "over the ceiling: inputs came from cache, or one tensor was given twice"
    return (
        "over the ceiling: the ceiling was measured on a busy machine, the formula counts too many "
        "operations, or a faster unit did them"
    )


def owners(parent: Rows, known: NDArray[np.bool_], launches: Rows) -> Rows:
    """Return for each operator the operator whose formula counts the work it launches; -1: none.

    `known`: whether a formula knows the work of an operator; `launches`: how many device operations
    each operator launched itself.
    """
    owner = np.full(len(parent), -1, np.int64)
    rows = np.flatnonzero(launches > 0)
    at = rows
    while len(rows):
        nearest = known[at] & (owner[rows] < 0)
        owns_all_work = known[at] & (launches[at] > 0)
        owned = (
            nearest | owns_all_work
        )  # later turns are further out, so the outermost launcher stays
        owner[rows[owned]] = at[owned]
        at = parent[at]
        rows, at = rows[at >= 0], at[at >= 0]
    return owner


def owns_all_work(
    parent: Rows, owner: Rows, launched: Rows, in_window: Rows, shares: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which operators own all work beneath them, with all of it inside the window.

    `shares`: operators that leave a part of their work to another operator by design.
    """
    rows = np.flatnonzero(owner >= 0)
    answered = sums_by(owner[rows], in_window[rows], len(parent))
    complete = answered == beneath(parent, launched)
    if shares.any():
        all_answered = sums_by(owner[rows], launched[rows], len(parent))
        complete |= shares & (answered == all_answered)
    return np.asarray(complete & (answered > 0), bool)

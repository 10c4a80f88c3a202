"""Convolutions with a bias that a batch norm follows directly, and what the bias costs.

The order of operators on the calling thread shows what follows. Shapes alone do not: an activation
between the two has the same shape.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.sites import NormedConv
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.critical_path import device_on_path
from ridgeline.trace.analyses.modules import forward_of, module_paths, path_of
from ridgeline.trace.links import Links, Rows, inherited, own_time, sums_by
from ridgeline.trace.places import user_places
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import started, step_spans

CONVOLUTIONS = frozenset(f"aten::conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))
NORMS = frozenset(("aten::batch_norm", "aten::instance_norm", "aten::batch_norm_stats"))
_PASSED_OPERATORS = frozenset(("aten::to", "aten::detach", "aten::lift_fresh"))
_MAX_OPERATORS_BETWEEN = 5
"""How many operators after a convolution are searched for its norm."""
_COUNTERS = frozenset(("aten::add_", "aten::add"))
"""Operators by which a norm counts its batches, on a scalar, before it runs."""


class _Costs(Struct, frozen=True):
    """The device time of each operator's own launches; on a CPU its own time."""

    ns: NDArray[np.int64]
    exposed: NDArray[np.int64]


def normed_convs(trace: Trace, links: Links, window: Window) -> tuple[NormedConv, ...]:
    """Return the convolutions with a norm after them, the costliest first."""
    rows = np.flatnonzero(started(trace.ops, step_spans(trace, window)))
    outermost = rows[links.op_parent[rows] < 0]
    heads = [row for row in _followed(trace, outermost) if _has_bias(trace, row)]
    if not heads:
        return ()
    number = np.full(len(trace.ops), -1, np.int64)
    number[links.op_parent < 0] = np.flatnonzero(links.op_parent < 0)
    root = inherited(number, links.op_parent)
    added = _called_by(trace, root, "aten::add_", "aten::_convolution", links)
    summed = _called_by(trace, root, "aten::sum", "aten::convolution_backward", links)
    return _grouped(trace, links, window, heads, added, _by_forward_op(trace, root, summed))


def _followed(trace: Trace, outermost: Rows) -> list[int]:
    """Return the convolutions whose next operator on the thread is a norm that trains."""
    followed = []
    ops = trace.ops
    convolving = trace.names_where(ops.name, lambda name: name in CONVOLUTIONS)
    for lane in np.unique(ops.lane[outermost[convolving[outermost]]]).tolist():
        rows = outermost[ops.lane[outermost] == lane]
        rows = rows[np.argsort(ops.ts[rows], kind="stable")]
        for position in np.flatnonzero(convolving[rows]).tolist():
            after = _norm_after(
                trace, rows[position + 1 : position + 1 + _MAX_OPERATORS_BETWEEN].tolist()
            )
            if after is not None and not _has_fixed_statistics(trace, after):
                followed.append(int(rows[position]))
    return followed


def _norm_after(trace: Trace, rows: list[int]) -> int | None:
    """Return the norm among these rows if only operators that compute nothing come before it."""
    counted = False
    for row in rows:
        name = trace.text(int(trace.ops.name[row]))
        if name in NORMS:
            return row
        if name in _COUNTERS and not counted and _has_scalar_input(trace, row):
            counted = True
        elif name not in _PASSED_OPERATORS:
            return None
    return None


def _has_scalar_input(trace: Trace, row: int) -> bool:
    """Return whether the first argument is a scalar; an unknown one counts as a scalar."""
    dims = trace.shape(int(trace.ops.shape[row])).dims if trace.ops.shape[row] >= 0 else ()
    return not dims or dims[0] in ([], ())


def _has_fixed_statistics(trace: Trace, row: int) -> bool:
    """Return whether a norm has fixed statistics, as in evaluation."""
    if trace.ops.shape[row] < 0:
        return False
    concrete = trace.shape(int(trace.ops.shape[row])).concrete
    return len(concrete) > 5 and str(concrete[5]) == "False"


def _has_bias(trace: Trace, row: int) -> bool:
    """Return whether a convolution has a bias, by its third argument. Without recorded shapes, the
    answer is True: the operators that it calls then decide."""
    if trace.ops.shape[row] < 0:
        return True
    dims = trace.shape(int(trace.ops.shape[row])).dims
    return len(dims) < 3 or bool(dims[2])


def _called_by(
    trace: Trace, root: Rows, name: str, within: str, links: Links
) -> dict[int, list[int]]:
    """Return the operators of a name that another operator calls, by their outermost operator."""
    names = trace.names_where(trace.ops.name, lambda text: text == name)
    callers = trace.names_where(trace.ops.name, lambda text: text == within)
    parent = links.op_parent
    rows = np.flatnonzero(names & (parent >= 0))
    rows = rows[callers[parent[rows]]]
    by_root: dict[int, list[int]] = {}
    for row in rows.tolist():
        by_root.setdefault(int(root[row]), []).append(row)
    return by_root


def _by_forward_op(
    trace: Trace, root: Rows, backward: dict[int, list[int]]
) -> dict[int, list[int]]:
    """Return the operators beneath nodes of the backward, by the outermost operator of their
    forward."""
    forward = forward_of(trace, np.ones(len(trace.ops), bool))
    by_root: dict[int, list[int]] = {}
    for node in np.flatnonzero(forward >= 0).tolist():
        rows = backward.get(int(root[node]))
        if rows:
            of_forward = by_root.setdefault(int(root[forward[node]]), [])
            of_forward += [row for row in rows if row not in of_forward]
    return by_root


def _grouped(
    trace: Trace, links: Links, window: Window, heads: list[int],
    added: dict[int, list[int]], summed: dict[int, list[int]],
) -> tuple[NormedConv, ...]:  # fmt: skip
    costs, tree = _costs(trace, links, window), module_paths(trace, links, window)
    places, ops = user_places(trace, links), trace.ops
    conv_rows = np.array(heads)
    codes = places.at(ops.lane[conv_rows].astype(np.int64), ops.ts[conv_rows]).tolist()
    steps = max(window.steps, 1)
    groups: dict[tuple[int, int], list[int]] = {}
    for row, code in zip(heads, codes, strict=True):
        module = int(tree.of_op[row]) if tree is not None else -1
        groups.setdefault((code, module), []).append(row)
    convs = []
    for (code, module), rows in groups.items():
        adding = [r for row in rows for r in added.get(row, ())]
        summing = [r for row in rows for r in summed.get(row, ())]
        if adding or summing:
            convs.append(
                NormedConv(
                    place=places.place(code),
                    module=" / ".join(path_of(tree, module)) if tree and module >= 0 else "",
                    calls=len(rows) / steps,
                    weight=_weight(trace, rows[0]),
                    add_ns=float(costs.ns[adding].sum()) / steps,
                    gradient_ns=float(costs.ns[summing].sum()) / steps,
                    exposed_ns=float(costs.exposed[adding + summing].sum()) / steps,
                )
            )
    return tuple(sorted(convs, key=lambda conv: -(conv.add_ns + conv.gradient_ns)))


def _costs(trace: Trace, links: Links, window: Window) -> _Costs:
    if not len(trace.device):
        own = own_time(links.op_parent, trace.ops.dur).astype(np.int64)
        return _Costs(own, own)
    op = links.device_op
    launched, size = np.flatnonzero(op >= 0), len(trace.ops)
    ns = sums_by(op[launched], trace.device.dur[launched], size)
    exposed = sums_by(op[launched], device_on_path(trace, links, window)[launched], size)
    return _Costs(ns, exposed)


def _weight(trace: Trace, row: int) -> tuple[int, ...]:
    dims = trace.shape(int(trace.ops.shape[row])).dims if trace.ops.shape[row] >= 0 else ()
    return tuple(dims[1]) if len(dims) > 1 else ()

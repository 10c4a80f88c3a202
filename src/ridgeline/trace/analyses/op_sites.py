"""Operators of the traced steps by where they are called from: what rules look at.

An operator that answers for its work (`work_owners`) stands for everything beneath it; one that
nobody answers for stands for itself. So a site is `aten::addmm`, not the `aten::linear` around it,
and `aten::convolution_backward`, not the sum of a bias inside it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.sites import OpSite, SiteKernel, SitePhase
from ridgeline.records.trace import Place, Window
from ridgeline.trace.analyses.critical_path import device_on_path
from ridgeline.trace.analyses.distinct import distinct
from ridgeline.trace.analyses.forward_of import forward_of
from ridgeline.trace.analyses.module_paths import Modules, module_paths
from ridgeline.trace.analyses.modules import path_of
from ridgeline.trace.analyses.phases import phase_spans
from ridgeline.trace.analyses.step_counts import Counted, count_work, started, step_spans
from ridgeline.trace.analyses.tree import inherited, own_time
from ridgeline.trace.analyses.work_owners import OWNS
from ridgeline.trace.intervals import covered
from ridgeline.trace.links import Links, Rows, at_rows
from ridgeline.trace.places import Places, place_of
from ridgeline.trace.trace import Trace

MOST = 4000
"""Sites kept; a step of GPT-2 has some 600 without module numbers, 1,500 with."""
_KERNELS = 3
_PHASES: tuple[SitePhase, ...] = ("other", "input", "forward", "backward", "optimizer")


class _Owned(Struct, frozen=True):
    """Every operator of the steps: the row that stands for it, and its group."""

    rows: Rows
    stands: Rows
    group: Rows
    """Of each of `rows`."""
    keys: Rows
    """Of each group: name, shape, place, module, phase, path."""
    first: Rows
    """Of each group: its first standing row."""


def op_sites(trace: Trace, links: Links, window: Window) -> tuple[tuple[OpSite, ...], int, float]:
    """Sites, the costliest first; how many were left out, and their time a step."""
    spans = step_spans(trace, window)
    rows = np.flatnonzero(started(trace.ops, spans))
    if not len(rows):
        return (), 0, 0.0
    counted = count_work(trace, links, spans)
    places, modules = Places(trace, links), module_paths(trace, links, window)
    owned = _grouped(trace, links, rows, counted, places, modules)
    return _sites(trace, links, window, counted, owned, places, modules)


def _grouped(
    trace: Trace, links: Links, rows: Rows, counted: Counted, places: Places, tree: Modules | None
) -> _Owned:
    ops = trace.ops
    number = np.full(len(ops), -1, np.int64)
    owners = np.flatnonzero(counted.state == OWNS)
    number[owners] = owners
    up = inherited(number, links.op_parent)
    stands = np.where(up[rows] >= 0, up[rows], rows)
    heads, which = np.unique(stands, return_inverse=True)
    forward = inherited(forward_of(trace, np.ones(len(ops), bool)), links.op_parent)[heads]
    source = np.where(forward >= 0, forward, heads)
    place = places.at(ops.lane[source].astype(np.int64), ops.ts[source])
    module = tree.of_op[source] if tree is not None else np.full(len(heads), -1, np.int64)
    keys, group = distinct(
        ops.name[heads], ops.shape[heads], place, module, _phase(trace, links, heads),
        _paths(trace, links)[heads],
    )  # fmt: skip
    first = np.full(len(keys), -1, np.int64)
    first[group[::-1]] = heads[::-1]
    return _Owned(rows, stands, group[which], keys, first)


def _phase(trace: Trace, links: Links, rows: Rows) -> Rows:
    found = np.zeros(len(rows), np.int64)
    at = trace.ops.ts[rows]
    for name, span in phase_spans(trace, links).items():
        found[covered(span, at, at + 1) > 0] = _PHASES.index(name)
    return found


def _paths(trace: Trace, links: Links) -> Rows:
    """A number for the chain of names around each operator, its own left out."""
    parent, name = links.op_parent, trace.ops.name.astype(np.int64)
    path = np.full(len(parent), -1, np.int64)
    path[parent < 0] = 0
    numbers: dict[tuple[int, int], int] = {}
    todo = np.flatnonzero(parent >= 0)
    while len(todo):  # a level a turn: those whose caller has its number
        ready = path[parent[todo]] >= 0
        here, todo = todo[ready], todo[~ready]
        pairs, which = distinct(path[parent[here]], name[parent[here]])
        told = [numbers.setdefault((int(a), int(b)), len(numbers) + 1) for a, b in pairs]
        path[here] = np.array(told, np.int64)[which]
    return path


def _sites(
    trace: Trace,
    links: Links,
    window: Window,
    counted: Counted,
    owned: _Owned,
    places: Places,
    tree: Modules | None,
) -> tuple[tuple[OpSite, ...], int, float]:
    size, steps = len(owned.keys), max(window.steps, 1)
    host = _summed(owned.group, own_time(links.op_parent, trace.ops.dur)[owned.rows], size)
    group_of = np.full(len(trace.ops), -1, np.int64)
    group_of[owned.rows] = owned.group
    op = links.device_op
    of = np.where(op >= 0, at_rows(group_of, op), -1).astype(np.int64)
    here = np.flatnonzero(of >= 0)
    device = _summed(of[here], trace.device.dur[here], size)
    exposed = _summed(of[here], device_on_path(trace, links, window)[here], size)
    flops, moved, dtypes = _work(counted, group_of, size)
    calls = np.bincount(owned.group[owned.rows == owned.stands], minlength=size)
    kernels = _kernels(trace, of, here, steps)
    order = np.argsort(-(host + device), kind="stable")
    kept = order[:MOST].tolist()
    found = []
    for i in kept:
        name, shape, place, module, phase, _ = owned.keys[i].tolist()
        told = trace.shape(shape)
        found.append(
            OpSite(
                op=trace.text(name),
                within=tuple(_around(trace, links, int(owned.first[i]))),
                dims=told.dims,
                types=tuple(str(kind) for kind in told.types),
                strides=told.strides,
                concrete=tuple(str(value) for value in told.concrete),
                phase=_PHASES[phase],
                place=_place(places, place),
                module=" / ".join(path_of(tree, module)) if tree and module >= 0 else "",
                calls=float(calls[i]) / steps,
                host_ns=float(host[i]) / steps,
                device_ns=float(device[i]) / steps,
                exposed_ns=float(exposed[i] if len(trace.device) else host[i]) / steps,
                flops=float(flops[i]) / steps,
                bytes=float(moved[i]) / steps,
                dtype=dtypes.get(i, ""),
                kernels=kernels.get(i, ()),
            )
        )
    rest = order[MOST:]
    return tuple(found), len(rest), float((host + device)[rest].sum()) / steps


def _summed(group: Rows, values: NDArray[Any], size: int) -> NDArray[np.int64]:
    total = np.zeros(size, np.int64)
    np.add.at(total, group, values)
    return total


def _work(
    counted: Counted, group_of: Rows, size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], dict[int, str]]:
    """Matmul-like FLOPs, bytes and arithmetic of each group."""
    flops, moved = np.zeros(size), np.zeros(size)
    dtypes: dict[int, str] = {}
    group = group_of[counted.rows]
    for at, work, tf32 in zip(
        group.tolist(), counted.which.tolist(), counted.tf32.tolist(), strict=True
    ):
        if at >= 0:
            told = counted.works[work]
            flops[at] += told.flops
            moved[at] += told.bytes
            dtypes[at] = "tf32" if tf32 and told.dtype == "float32" else told.dtype
    return flops, moved, dtypes


def _kernels(trace: Trace, of: Rows, here: Rows, steps: int) -> dict[int, tuple[SiteKernel, ...]]:
    if not len(here):
        return {}
    pairs, which = distinct(of[here], trace.device.name[here])
    ns = _summed(which, trace.device.dur[here], len(pairs))
    count = np.bincount(which, minlength=len(pairs))
    found: dict[int, list[SiteKernel]] = {}
    for i in np.argsort(-ns, kind="stable").tolist():
        rows = found.setdefault(int(pairs[i, 0]), [])
        if len(rows) < _KERNELS:
            name = trace.text(int(pairs[i, 1]))
            rows.append(
                SiteKernel(name=name, count=float(count[i]) / steps, ns=float(ns[i]) / steps)
            )
    return {at: tuple(rows) for at, rows in found.items()}


def _around(trace: Trace, links: Links, row: int) -> Iterator[str]:
    above = []
    row = int(links.op_parent[row])
    while row >= 0:
        above.append(trace.text(int(trace.ops.name[row])))
        row = int(links.op_parent[row])
    return reversed(above)


def _place(places: Places, code: int) -> Place | None:
    return place_of(places.text(code)) if code != -1 else None

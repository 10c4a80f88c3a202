"""Operators: time on the host and on the device, by name or by name and inputs.

An operator counts where it started in the window or its device work did (the one that launched the
window's first kernel began before it).
"""

from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.sites import OpSite, SiteKernel
from ridgeline.records.trace import OpRow, Window
from ridgeline.trace.analyses.critical_path import device_on_path
from ridgeline.trace.analyses.kernels import category_of
from ridgeline.trace.analyses.modules import Modules, forward_of, module_paths, path_of
from ridgeline.trace.analyses.phases import CODED_PHASES, phase_codes
from ridgeline.trace.analyses.recorded_calls import shape_text
from ridgeline.trace.analyses.step_work import OWNS, Counted, count_work
from ridgeline.trace.links import (
    Links,
    Rows,
    at_rows,
    beneath,
    distinct,
    inherited,
    own_time,
    repeated,
    sums_by,
)
from ridgeline.trace.places import Places, user_places
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import rows_in, started, step_spans


class _Times(Struct, frozen=True):
    """A number for each row of `trace.ops`."""

    chosen: NDArray[np.bool_]
    host_self: Rows
    device_self: Rows
    device: Rows
    device_ns: int
    """The time of all device work in the window, launched by an operator or not."""


def ops(trace: Trace, links: Links, window: Window, limit: int = 50) -> tuple[OpRow, ...]:
    """Return the operators by name."""
    if not len(trace.ops):
        return ()
    key = trace.ops.name.astype(np.int64)
    return _table(trace, links, window, key, lambda row: "", limit)


def ops_by_shape(trace: Trace, links: Links, window: Window, limit: int = 50) -> tuple[OpRow, ...]:
    """Return the operators by name and inputs; () where no inputs were recorded."""
    table = trace.ops
    if not len(table) or not (table.shape >= 0).any():
        return ()
    codes, at = np.unique(table.shape, return_inverse=True)
    # strides and scalars differ where sizes and types agree: those are one row
    texts = [shape_text(trace.shape(int(code))) for code in codes]
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    shape = np.array([number[text] for text in texts], np.int64)[at]
    key = table.name.astype(np.int64) * len(number) + shape
    return _table(trace, links, window, key, lambda row: texts[int(at[row])], limit)


def _times(trace: Trace, links: Links, window: Window) -> _Times:
    table, parent = trace.ops, links.op_parent
    host_self = table.dur.copy()
    called = np.flatnonzero(parent >= 0)
    np.subtract.at(host_self, parent[called], table.dur[called])
    rows = rows_in(trace.device, window)
    op, dur = links.device_op[rows], trace.device.dur[rows]
    device_self = sums_by(op[op >= 0], dur[op >= 0], len(table))
    # also work of no length makes its operator count
    launched = sums_by(op[op >= 0], 1, len(table))
    chosen = beneath(parent, launched) > 0
    chosen[rows_in(table, window)] = True
    return _Times(
        chosen,
        np.maximum(host_self, 0),
        device_self,
        beneath(parent, device_self),
        int(dur.sum()),
    )


def _table(
    trace: Trace,
    links: Links,
    window: Window,
    key: Rows,
    shape: Callable[[int], str],
    limit: int,
) -> tuple[OpRow, ...]:
    times = _times(trace, links, window)
    rows = np.flatnonzero(times.chosen)
    if not len(rows):
        return ()
    outermost = ~repeated(links.op_parent, key)[rows]
    _, first, group = np.unique(key[rows], return_index=True, return_inverse=True)

    def total(values: Rows, mask: NDArray[np.bool_] | bool = True) -> Rows:
        return sums_by(group, np.where(mask, values[rows], 0), len(first))

    host, device = total(trace.ops.dur, outermost), total(times.device, outermost)
    host_self, device_self = total(times.host_self), total(times.device_self)
    count = np.bincount(group, minlength=len(first))
    share_of, whole = (device_self, times.device_ns) if times.device_ns else (host_self, 0)
    whole = whole or int(host_self.sum()) or 1
    table = []
    for i in np.lexsort((-host_self, -device_self))[:limit].tolist():
        row = int(rows[first[i]])
        name = trace.text(int(trace.ops.name[row]))
        table.append(
            OpRow(
                name=name,
                shape=shape(row),
                count=int(count[i]),
                host_ns=int(host[i]),
                host_self_ns=int(host_self[i]),
                device_ns=int(device[i]),
                device_self_ns=int(device_self[i]),
                share=int(share_of[i]) / whole,
                category=category_of("", name),
            )
        )
    return tuple(table)


MAX_SITES = 4000
"""A step of GPT-2 has some 600 sites without module numbers and 1,500 with them."""
_MAX_KERNELS = 3


class _GroupedOps(Struct, frozen=True):
    """The operators of the steps in groups that become the sites."""

    rows: Rows
    counted_as: Rows
    """The operator that owns the work of each of `rows`; the row itself if there is none."""
    group: Rows
    """The group of each of `rows`."""
    keys: Rows
    """Name, shape, place, module, phase and path of each group."""
    first: Rows
    """The first row of each group."""


def op_sites(trace: Trace, links: Links, window: Window) -> tuple[tuple[OpSite, ...], int, float]:
    """Return the sites, the costliest first; how many were left out; and the time in each step of
    those left out."""
    spans = step_spans(trace, window)
    rows = np.flatnonzero(started(trace.ops, spans))
    if not len(rows):
        return (), 0, 0.0
    counted = count_work(trace, links, spans)
    places, modules = user_places(trace, links), module_paths(trace, links, window)
    owned = _grouped(trace, links, rows, counted, places, modules)
    return _sites(trace, links, window, counted, owned, places, modules)


def _grouped(
    trace: Trace, links: Links, rows: Rows, counted: Counted, places: Places, tree: Modules | None
) -> _GroupedOps:
    ops = trace.ops
    number = np.full(len(ops), -1, np.int64)
    owners = np.flatnonzero(counted.state == OWNS)
    number[owners] = owners
    owner = inherited(number, links.op_parent)
    counted_as = np.where(owner[rows] >= 0, owner[rows], rows)
    heads, which = np.unique(counted_as, return_inverse=True)
    forward = inherited(forward_of(trace, np.ones(len(ops), bool)), links.op_parent)[heads]
    source = np.where(forward >= 0, forward, heads)
    place = places.at(ops.lane[source].astype(np.int64), ops.ts[source])
    module = tree.of_op[source] if tree is not None else np.full(len(heads), -1, np.int64)
    keys, group = distinct(
        ops.name[heads], ops.shape[heads], place, module, phase_codes(trace, links, ops.ts[heads]),
        _paths(trace, links)[heads],
    )  # fmt: skip
    first = np.full(len(keys), -1, np.int64)
    first[group[::-1]] = heads[::-1]
    return _GroupedOps(rows, counted_as, group[which], keys, first)


def _paths(trace: Trace, links: Links) -> Rows:
    """Return a number for the chain of names around each operator, without its own name."""
    parent, name = links.op_parent, trace.ops.name.astype(np.int64)
    path = np.full(len(parent), -1, np.int64)
    path[parent < 0] = 0
    numbers: dict[tuple[int, int], int] = {}
    todo = np.flatnonzero(parent >= 0)
    while len(todo):  # one level at a time: rows whose caller has its number
        ready = path[parent[todo]] >= 0
        current, todo = todo[ready], todo[~ready]
        pairs, which = distinct(path[parent[current]], name[parent[current]])
        path_numbers = [numbers.setdefault((int(a), int(b)), len(numbers) + 1) for a, b in pairs]
        path[current] = np.array(path_numbers, np.int64)[which]
    return path


def _sites(
    trace: Trace,
    links: Links,
    window: Window,
    counted: Counted,
    grouped: _GroupedOps,
    places: Places,
    tree: Modules | None,
) -> tuple[tuple[OpSite, ...], int, float]:
    size, steps = len(grouped.keys), max(window.steps, 1)
    host = sums_by(grouped.group, own_time(links.op_parent, trace.ops.dur)[grouped.rows], size)
    group_of = np.full(len(trace.ops), -1, np.int64)
    group_of[grouped.rows] = grouped.group
    op = links.device_op
    group_of_operation = np.where(op >= 0, at_rows(group_of, op), -1).astype(np.int64)
    of_steps = np.flatnonzero(group_of_operation >= 0)
    device = sums_by(group_of_operation[of_steps], trace.device.dur[of_steps], size)
    exposed = sums_by(
        group_of_operation[of_steps], device_on_path(trace, links, window)[of_steps], size
    )
    flops, executed, moved, dtypes = _work(counted, group_of, size)
    calls = np.bincount(grouped.group[grouped.rows == grouped.counted_as], minlength=size)
    kernels = _kernels(trace, group_of_operation, of_steps, steps)
    order = np.argsort(-(host + device), kind="stable")
    kept = order[:MAX_SITES].tolist()
    sites = []
    for i in kept:
        name, shape, place, module, phase, _ = grouped.keys[i].tolist()
        inputs = trace.shape(shape)
        sites.append(
            OpSite(
                op=trace.text(name),
                within=tuple(_names_around(trace, links, int(grouped.first[i]))),
                dims=inputs.dims,
                types=tuple(str(kind) for kind in inputs.types),
                strides=inputs.strides,
                concrete=tuple(str(value) for value in inputs.concrete),
                phase=CODED_PHASES[phase],
                place=places.place(place),
                module=" / ".join(path_of(tree, module)) if tree and module >= 0 else "",
                calls=float(calls[i]) / steps,
                host_ns=float(host[i]) / steps,
                device_ns=float(device[i]) / steps,
                exposed_ns=float(exposed[i] if len(trace.device) else host[i]) / steps,
                flops=float(flops[i]) / steps,
                executed_flops=float(executed[i]) / steps,
                bytes=float(moved[i]) / steps,
                dtype=dtypes.get(i, ""),
                kernels=kernels.get(i, ()),
            )
        )
    rest = order[MAX_SITES:]
    return tuple(sites), len(rest), float((host + device)[rest].sum()) / steps


def _work(
    counted: Counted, group_of: Rows, size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], dict[int, str]]:
    """Return the matmul-like FLOPs, all executed FLOPs, the bytes and the arithmetic of each
    group."""
    flops, executed, moved = np.zeros((3, size))
    dtypes: dict[int, str] = {}
    group = group_of[counted.rows]
    for group_number, work, tf32 in zip(
        group.tolist(), counted.which.tolist(), counted.tf32.tolist(), strict=True
    ):
        if group_number >= 0:
            work_of_call = counted.works[work]
            flops[group_number] += work_of_call.flops
            executed[group_number] += work_of_call.executed
            moved[group_number] += work_of_call.bytes
            dtypes[group_number] = (
                "tf32" if tf32 and work_of_call.dtype == "float32" else work_of_call.dtype
            )
    return flops, executed, moved, dtypes


def _kernels(
    trace: Trace, group_of_operation: Rows, rows_of_steps: Rows, steps: int
) -> dict[int, tuple[SiteKernel, ...]]:
    if not len(rows_of_steps):
        return {}
    pairs, which = distinct(group_of_operation[rows_of_steps], trace.device.name[rows_of_steps])
    ns = sums_by(which, trace.device.dur[rows_of_steps], len(pairs))
    count = np.bincount(which, minlength=len(pairs))
    kernels: dict[int, list[SiteKernel]] = {}
    for i in np.argsort(-ns, kind="stable").tolist():
        rows = kernels.setdefault(int(pairs[i, 0]), [])
        if len(rows) < _MAX_KERNELS:
            name = trace.text(int(pairs[i, 1]))
            rows.append(
                SiteKernel(name=name, count=float(count[i]) / steps, ns=float(ns[i]) / steps)
            )
    return {at: tuple(rows) for at, rows in kernels.items()}


def _names_around(trace: Trace, links: Links, row: int) -> Iterator[str]:
    above = []
    row = int(links.op_parent[row])
    while row >= 0:
        above.append(trace.text(int(trace.ops.name[row])))
        row = int(links.op_parent[row])
    return reversed(above)

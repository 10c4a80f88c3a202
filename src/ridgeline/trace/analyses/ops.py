"""Operators: time on the host and on the device, by name or by name and inputs.

An operator counts where it started in the window or its device work did (the one that launched the
window's first kernel began before it).
"""

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.trace import OpRow, Window
from ridgeline.trace.analyses.categories import category_of
from ridgeline.trace.analyses.shape_text import shape_text
from ridgeline.trace.analyses.tree import beneath, repeated
from ridgeline.trace.analyses.within import within
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace

Rows = NDArray[np.int64]


class _Times(Struct, frozen=True):
    """A number for each row of `trace.ops`."""

    chosen: NDArray[np.bool_]
    host_self: Rows
    device_self: Rows
    device: Rows
    device_ns: int
    """Of all device work in the window, launched by an operator or not."""


def ops(trace: Trace, links: Links, window: Window, limit: int = 50) -> tuple[OpRow, ...]:
    """By name."""
    if not len(trace.ops):
        return ()
    key = trace.ops.name.astype(np.int64)
    return _table(trace, links, window, key, lambda row: "", limit)


def ops_by_shape(trace: Trace, links: Links, window: Window, limit: int = 50) -> tuple[OpRow, ...]:
    """By name and inputs; () where no inputs were recorded."""
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
    child = np.flatnonzero(parent >= 0)
    np.subtract.at(host_self, parent[child], table.dur[child])
    rows = within(trace.device, window)
    op, dur = links.device_op[rows], trace.device.dur[rows]
    device_self = np.zeros(len(table), np.int64)
    np.add.at(device_self, op[op >= 0], dur[op >= 0])
    launched = np.zeros(len(table), np.int64)  # also work of no length makes its operator count
    np.add.at(launched, op[op >= 0], 1)
    chosen = beneath(parent, launched) > 0
    chosen[within(table, window)] = True
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
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, group, np.where(mask, values[rows], 0))
        return sums

    host, device = total(trace.ops.dur, outermost), total(times.device, outermost)
    host_self, device_self = total(times.host_self), total(times.device_self)
    count = np.bincount(group, minlength=len(first))
    by, whole = (device_self, times.device_ns) if times.device_ns else (host_self, 0)
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
                share=int(by[i]) / whole,
                category=category_of("", name),
            )
        )
    return tuple(table)

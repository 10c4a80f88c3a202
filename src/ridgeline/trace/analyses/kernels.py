"""Kernels, copies and fills by name: how often, how long, who launched them."""

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import KernelRow, Window
from ridgeline.trace.analyses.categories import category_of
from ridgeline.trace.analyses.distinct import distinct
from ridgeline.trace.analyses.tensor_cores import uses_tensor_cores
from ridgeline.trace.analyses.within import within
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace


def kernels(
    trace: Trace, links: Links, window: Window, limit: int = 50
) -> tuple[tuple[KernelRow, ...], int]:
    """Rows by total time, and how many further names there are."""
    rows = within(trace.device, window)
    if not len(rows):
        return (), 0
    dur, names = trace.device.dur[rows], trace.device.name[rows]
    found, name = np.unique(names, return_inverse=True)
    total = np.zeros(len(found), np.int64)
    np.add.at(total, name, dur)
    least, most = np.full(len(found), np.iinfo(np.int64).max), np.zeros(len(found), np.int64)
    np.minimum.at(least, name, dur)
    np.maximum.at(most, name, dur)
    count = np.bincount(name, minlength=len(found))
    launcher = _usual_op(trace, links, rows, name, len(found))
    kind = np.zeros(len(found), np.uint8)
    kind[name] = trace.device.kind[rows]
    whole = max(int(total.sum()), 1)
    table = []
    for i in np.argsort(-total, kind="stable")[:limit].tolist():
        text, op = trace.text(int(found[i])), trace.text(int(launcher[i]))
        plain = kind[i] != Kind.KERNEL
        table.append(
            KernelRow(
                name=text,
                category="copy" if plain else category_of(text, op),
                count=int(count[i]),
                total_ns=int(total[i]),
                share=int(total[i]) / whole,
                mean_ns=int(total[i]) / int(count[i]),
                least_ns=int(least[i]),
                most_ns=int(most[i]),
                op=op,
                tensor_cores=False if plain else uses_tensor_cores(text),
            )
        )
    return tuple(table), max(len(found) - limit, 0)


def _usual_op(
    trace: Trace, links: Links, rows: NDArray[np.int64], name: NDArray[np.int64], names: int
) -> NDArray[np.int64]:
    """For each kernel name the operator name that launches it most often; -1 where none does."""
    usual = np.full(names, -1, np.int64)
    op = links.device_op[rows]
    linked = op >= 0
    if not linked.any():
        return usual
    launcher = trace.ops.name[op[linked]].astype(np.int64)
    pairs, number = distinct(name[linked], launcher)
    # the last written is the most frequent
    order = np.argsort(np.bincount(number, minlength=len(pairs)), kind="stable")
    usual[pairs[order, 0]] = pairs[order, 1]
    return usual

"""Operator time of steps that ran on a GPU: what its own clock says of kernels and copies."""

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.records.machine import Device
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.busy import busy_spans, is_communication
from ridgeline.trace.analyses.host_operators import input_spans
from ridgeline.trace.analyses.operator_time import SHORT_NS, OperatorTime, uncounted
from ridgeline.trace.analyses.roofline import roofline
from ridgeline.trace.analyses.step_counts import Counted
from ridgeline.trace.analyses.within import within
from ridgeline.trace.analyses.work_owners import NOTHING
from ridgeline.trace.columns import DeviceOps
from ridgeline.trace.intervals import gaps, intersect, subtract
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links, Rows, at_rows
from ridgeline.trace.trace import Trace

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
    rows = within(trace.device, window)
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
        uncounted=uncounted(_by_name(trace, links, rows[~known]), spent, steps),
        operators=len(within(own, window)),
        short_share=float(dur[dur < SHORT_NS].sum()) / spent,
        rows=tuple(msgspec.structs.replace(row, share=row.device_ns / spent) for row in told),
    )


def _linked(trace: Trace) -> NDArray[np.bool_]:
    """Collectives and copies between host and device: bound by links, so no operator's work."""
    ops = trace.device
    talks = trace.names_where(ops.name, is_communication) & (ops.kind == Kind.KERNEL)
    copies = (ops.kind == Kind.MEMCPY) & trace.names_where(ops.name, _over_link)
    return np.asarray(talks | copies, bool)


def _busiest(trace: Trace, window: Window) -> DeviceOps:
    """The operations of the device that worked longest: a process drives one, as a rule."""
    ops = trace.device
    each = [ops.take(ops.device == number) for number in np.unique(ops.device)]
    return max(each, key=lambda one: busy_spans(one, window).total)


def _over_link(name: str) -> bool:
    return _LINK.search(name) is not None


def _by_name(trace: Trace, links: Links, rows: Rows) -> list[tuple[str, int, int]]:
    """Pieces of device work and their time by the operator that launched them, else by own name."""
    op = links.device_op[rows]
    name = np.where(op >= 0, at_rows(trace.ops.name, op), trace.device.name[rows])
    found, at = np.unique(name, return_inverse=True)
    ns, calls = np.zeros((2, len(found)), np.int64)
    np.add.at(ns, at, trace.device.dur[rows])
    np.add.at(calls, at, 1)
    told = zip(found.tolist(), calls.tolist(), ns.tolist(), strict=True)
    return [(trace.text(int(code)), count, spent) for code, count, spent in told]

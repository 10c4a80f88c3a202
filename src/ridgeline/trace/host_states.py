"""What one host thread was in at every moment: spans by cause, disjoint, the more telling first.

A DataLoader's `__next__` that copies, allocates and synchronises is input; a synchronisation
inside a barrier is waiting for ranks. What no recorded call or operator covers is the program's
own Python, unless it is shorter than CHATTER: between two operators of an eager loop Python takes
5 to 100 µs, and that is the cost of launching, not work of its own.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ridgeline.records.trace import Cause
from ridgeline.trace.columns import Events
from ridgeline.trace.host_names import (
    BLOCKING_OPS,
    COPY_OPS,
    is_allocator_call,
    is_collection,
    is_collective_wait,
    is_compile,
    is_copy_call,
    is_input,
    is_sync_call,
)
from ridgeline.trace.intervals import NOTHING, Spans, closed, merge, subtract, union
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links, Rows
from ridgeline.trace.trace import Trace

CHATTER_NS = 200_000

ORDER: tuple[Cause, ...] = (
    "garbage collection",
    "compile",
    "input",
    "collective wait",
    "allocator",
    "transfer",
    "synchronisation",
    "launch-bound",
)
"""The first of these that covers a moment names it; what none covers is "other host"."""


class HostStates(NamedTuple):
    """Spans of each cause of ORDER, disjoint; and when this thread was seen doing anything."""

    spans: dict[Cause, Spans]
    active: Spans


def states_of(trace: Trace, links: Links, lane: int) -> HostStates:
    """The states of one thread."""
    calls = trace.calls.take(trace.calls.lane == lane)
    ops = trace.ops.take(trace.ops.lane == lane)
    spans = trace.annotations.take(trace.annotations.lane == lane)
    frames = trace.frames.take(trace.frames.lane == lane)
    to_device, to_host = copy_calls(trace, links, lane)
    raw: dict[Cause, Spans] = {
        "garbage collection": _named(trace, is_collection, frames, spans),
        "compile": _named(trace, is_compile, frames, spans, ops, calls),
        "input": _named(trace, is_input, frames, spans),
        "collective wait": _named(trace, is_collective_wait, frames, spans, ops),
        "allocator": _named(trace, is_allocator_call, calls),
        "transfer": to_device,
        "synchronisation": merge(
            _named(trace, is_sync_call, calls),
            to_host,
            _named(trace, BLOCKING_OPS.__contains__, ops),
        ),
    }
    working = merge(_spans(ops), _spans(calls))
    raw["launch-bound"] = closed(merge(working, *raw.values()), CHATTER_NS)
    disjoint: dict[Cause, Spans] = {}
    taken = NOTHING
    for cause in ORDER:
        disjoint[cause] = subtract(raw[cause], taken)
        taken = merge(taken, raw[cause])
    return HostStates(disjoint, taken)


def copy_calls(trace: Trace, links: Links, lane: int) -> tuple[Spans, Spans]:
    """Host time spent handing a copy to the device, and waiting for one from it.

    To the device: from the start of the copying operator (a pageable source is first copied by the
    host) to the end of the call. From it: the call, which waits where the target is pageable.
    """
    call, device = links.device_call, trace.device
    copies = np.flatnonzero((device.kind == Kind.MEMCPY) & (call >= 0))
    copies = copies[trace.calls.lane[call[copies]] == lane]
    to_device = copies[trace.names_where(device.name[copies], _to_device)]
    to_host = copies[trace.names_where(device.name[copies], _to_host)]
    rows = call[to_device]
    op = _outermost_copy(trace, links, links.call_op[rows])
    start = np.where(
        op >= 0, trace.ops.ts[np.maximum(op, 0)] if len(trace.ops) else 0, trace.calls.ts[rows]
    )
    rows_back = call[to_host]
    return (
        union(start, trace.calls.end[rows]),
        union(trace.calls.ts[rows_back], trace.calls.end[rows_back]),
    )


def sync_spans(trace: Trace, links: Links) -> Events:
    """Every call that made the host wait for the device, on any thread, in order of start."""
    calls = trace.calls
    blocking = trace.names_where(calls.name, is_sync_call)
    device = trace.device
    back = (device.kind == Kind.MEMCPY) & trace.names_where(device.name, _to_host)
    rows = links.device_call[back]
    waits = np.zeros(len(calls), bool)
    waits[rows[rows >= 0]] = True
    waits &= trace.names_where(calls.name, is_copy_call)
    return calls.take(blocking | waits)


def _to_device(name: str) -> bool:
    return "HtoD" in name or "HostToDevice" in name or "Host -> Device" in name


def _to_host(name: str) -> bool:
    return "DtoH" in name or "DeviceToHost" in name or "Device -> Host" in name


def _outermost_copy(trace: Trace, links: Links, op: Rows) -> Rows:
    """The outermost of the copying operators around each; -1 where there is none."""
    if not len(trace.ops):
        return np.full(len(op), -1, np.int64)
    copying = trace.names_where(trace.ops.name, COPY_OPS.__contains__)
    found = np.full(len(op), -1, np.int64)
    here = op.copy()
    while (held := here >= 0).any():
        is_copy = held & copying[np.maximum(here, 0)]
        found = np.where(is_copy, here, found)
        here = np.where(is_copy, links.op_parent[np.maximum(here, 0)], -1)
    return found


def _named(trace: Trace, test: Callable[[str], bool], *tables: Events) -> Spans:
    return merge(*(_spans(t.take(trace.names_where(t.name, test))) for t in tables))


def _spans(table: Events) -> Spans:
    return union(table.ts, table.end, sorted_=True)

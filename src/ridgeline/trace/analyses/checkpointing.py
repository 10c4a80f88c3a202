"""Activation checkpointing in a trace, by the Python functions of torch.utils.checkpoint: which
operators ran in a second forward, and which one of each was begun and given up.

The second forward stops as soon as it has what backward needs, in the middle of the last operator
that saves a tensor: by an exception from a hook, before any arithmetic. The profiler records that
operator like any other.
"""

import re

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.intervals import Spans, covered, subtract, union
from ridgeline.trace.links import Rows
from ridgeline.trace.trace import Trace

Mask = NDArray[np.bool_]
_FILE = r"(^|[/\\])torch[/\\]utils[/\\]checkpoint\.py\(\d+\): "
_SECOND_FORWARD = re.compile(_FILE + "(backward|recompute_fn)$")
_STOPS = re.compile(_FILE + "recompute_fn$")
_SAVES = re.compile(_FILE + "pack_hook$")
_AUTOGRAD = re.compile(r"(^|[/\\])torch[/\\]autograd[/\\]__init__\.py\(\d+\): backward$")


def second_forward(trace: Trace, rows: Rows) -> Mask:
    """Which of these operators ran in one, where Python stacks show it."""
    ops = trace.ops
    found = np.zeros(len(rows), bool)
    for lane in np.unique(trace.frames.lane[_named(trace, _SECOND_FORWARD)]).tolist():
        again = _spans(trace, _SECOND_FORWARD, lane)
        # the older kind runs its forward and its backward inside a backward of its own
        inner = _spans(trace, _AUTOGRAD, lane, again)
        at = ops.ts[rows]
        inside = covered(subtract(again, inner), at, at + 1) > 0
        found |= (ops.lane[rows] == lane) & inside
    return found


def given_up(trace: Trace) -> Mask:
    """Of all operators: those still open at the last tensor a second forward saved, with nothing
    begun after it."""
    frames, ops = trace.frames, trace.ops
    found = np.zeros(len(ops), bool)
    saves = np.flatnonzero(_named(trace, _SAVES))
    for frame in np.flatnonzero(_named(trace, _STOPS)).tolist():
        start, end, lane = frames.ts[frame], frames.end[frame], frames.lane[frame]
        held = saves[(frames.ts[saves] >= start) & (frames.end[saves] <= end)]
        held = held[frames.lane[held] == lane]
        if not len(held):
            continue
        last = held[-1]
        first, stop = np.searchsorted(ops.ts, [start, end])
        rows = np.arange(first, stop)
        rows = rows[ops.lane[rows] == lane]
        if not (ops.ts[rows] >= frames.end[last]).any():
            found[rows[ops.end[rows] >= frames.end[last]]] = True
    return found


def _named(trace: Trace, pattern: re.Pattern[str]) -> Mask:
    return np.asarray(
        trace.names_where(trace.frames.name, lambda name: pattern.search(name) is not None), bool
    )


def _spans(trace: Trace, pattern: re.Pattern[str], lane: int, within: Spans | None = None) -> Spans:
    """When functions of that name ran on a lane; of those that began within spans only."""
    frames = trace.frames
    rows = _named(trace, pattern) & (frames.lane == lane)
    if within is not None:
        rows &= covered(within, frames.ts, frames.ts + 1) > 0
    return union(frames.ts[rows], frames.end[rows])

"""Works out how work gets to the device: launch latency, what was queued at each launch, small
kernels.

A launch is one call with device work. All kernels of a graph launch are one launch, whose latency
ends with the first kernel. Only work with a known launching call counts; `linked` is its share.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.facts import Trust
from ridgeline.records.trace import Launch, Window
from ridgeline.trace.analyses.kernels import category_of, uses_tensor_cores
from ridgeline.trace.columns import DeviceOps, Kind
from ridgeline.trace.intervals import covered, union
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import rows_in

MAX_SMALL_KERNEL_NS = 10_000
"""A shorter kernel takes less time than its launch."""
MAX_EARLY_SHARE = 0.01
"""No latency is given if the work of a larger share of launches starts before them. A choice: none
of ten real GPU traces has one such launch, and no trace with broken clocks was at hand."""

_MATH = ("matmul", "convolution", "attention")


class _Launches(NamedTuple):
    """One row for each launching call and device, in order of the call."""

    at: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    call_ns: NDArray[np.int64]
    device: NDArray[np.int64]


def launch(trace: Trace, links: Links, window: Window, steps: int) -> Launch:
    device = trace.device
    inside = rows_in(device, window)
    here = device.take(inside)
    if not len(here):
        return Launch(trust=Trust(confidence="unreliable", why="no device work in the window"))
    every = _launches(device, links, trace)
    chosen = (every.first >= window.start_ns) & (every.first < window.end_ns)
    latency = (every.first - every.at)[chosen]
    early = int((latency < 0).sum())
    linked = float((links.device_call[inside] >= 0).mean())
    sound = len(latency) > 0 and early <= MAX_EARLY_SHARE * len(latency)
    depth, empty = _queue(device, every, chosen) if sound else (None, None)
    fair = latency[latency >= 0]
    small, small_time = _small_kernels(here)
    return Launch(
        launches=len(latency),
        per_step=len(latency) / steps if steps else None,
        median_latency_ns=float(np.median(fair)) if sound else None,
        p95_latency_ns=float(np.percentile(fair, 95)) if sound else None,
        median_call_ns=float(np.median(every.call_ns[chosen])) if len(latency) else None,
        linked=linked,
        median_queue=depth,
        empty_queue=empty,
        small_kernels=small,
        small_kernel_time=small_time,
        tensor_core_time=_tensor_core_time(trace, here, links.device_op[inside]),
        trust=_trust(len(here), len(latency), early, linked),
    )


def _launches(device: DeviceOps, links: Links, trace: Trace) -> _Launches:
    rows = np.flatnonzero(links.device_call >= 0)
    call = links.device_call[rows]
    # device operations are in order of start: within a call the first stays first
    order = np.lexsort((device.device[rows], call))
    rows, call = rows[order], call[order]
    on = device.device[rows].astype(np.int64)
    new = np.ones(len(rows), bool)
    new[1:] = (call[1:] != call[:-1]) | (on[1:] != on[:-1])
    heads = np.flatnonzero(new)
    ends = device.end[rows]
    last = np.maximum.reduceat(ends, heads) if len(heads) else ends
    calls = call[heads]
    return _Launches(
        trace.calls.ts[calls], device.ts[rows][heads], last, trace.calls.dur[calls], on[heads]
    )


def _queue(device: DeviceOps, every: _Launches, chosen: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the median number of operations that wait at a launch, and the share of launches that
    found no operation waiting or running."""
    waiting = np.zeros(len(every.at), np.int64)
    idle = np.zeros(len(every.at), bool)
    for device_number in np.unique(every.device):
        rows = np.flatnonzero(every.device == device_number)
        at = every.at[rows]
        before = np.searchsorted(np.sort(at), at, side="left")
        started = np.searchsorted(np.sort(every.first[rows]), at, side="right")
        waiting[rows] = np.maximum(before - started, 0)
        on_device = device.device == device_number
        # a graph holds the device from its first kernel to its last
        busy = union(
            np.concatenate([device.ts[on_device], every.first[rows]]),
            np.concatenate([device.end[on_device], every.last[rows]]),
        )
        idle[rows] = covered(busy, at, at + 1) == 0
    empty = (waiting == 0) & idle
    return float(np.median(waiting[chosen])), float(empty[chosen].mean())


def _small_kernels(here: DeviceOps) -> tuple[float, float]:
    dur = here.dur[here.kind == Kind.KERNEL]
    if not len(dur):
        return 0.0, 0.0
    small = dur < MAX_SMALL_KERNEL_NS
    total = int(dur.sum())
    return float(small.mean()), int(dur[small].sum()) / total if total else 0.0


def _tensor_core_time(trace: Trace, here: DeviceOps, op: NDArray[np.int64]) -> float | None:
    """Return the share of time on tensor cores, by kernel name; None where most of the time is in
    kernels whose names do not tell."""
    kernels = np.flatnonzero(here.kind == Kind.KERNEL)
    ops = trace.ops.name
    launcher = np.where(op >= 0, ops[np.maximum(op, 0)], -1) if len(ops) else np.full(len(op), -1)
    # names repeat: each pair of kernel and operator is judged once
    pairs = (here.name[kernels].astype(np.int64) << 32) | (launcher[kernels].astype(np.int64) + 1)
    kinds, rows = np.unique(pairs, return_inverse=True)
    time = np.bincount(rows, weights=here.dur[kernels], minlength=len(kinds))
    on, off, unknown = 0.0, 0.0, 0.0
    for pair, ns in zip(kinds.tolist(), time.tolist(), strict=True):
        name = trace.text(pair >> 32)
        if category_of(name, trace.text((pair & 0xFFFFFFFF) - 1)) not in _MATH:
            continue
        used = uses_tensor_cores(name)
        on, off, unknown = (
            on + ns * (used is True),
            off + ns * (used is False),
            unknown + ns * (used is None),
        )
    return None if on + off <= unknown else on / (on + off)


def _trust(operations: int, launches: int, early: int, linked: float) -> Trust:
    missing = f"{round((1 - linked) * operations)} of {operations} device operations"
    if not launches:
        return Trust(
            confidence="unreliable", why="no device operation has its launching call in the trace"
        )
    if early:
        bad = early > MAX_EARLY_SHARE * launches
        consequence = "; no latency is given" if bad else ", left out here"
        return Trust(
            confidence="unreliable" if bad else "doubtful",
            why=f"{early} of {launches} launches have device work that starts before them"
            f"{consequence}: the clocks of host and device disagree",
        )
    if linked < 1:
        return Trust(
            confidence="doubtful" if linked < 0.95 else "good",
            why=f"{missing} have no launching call in the trace: the others alone are counted",
        )
    return Trust()

"""The time in which each device worked, by stream and by step. Overlapping work counts once."""

import numpy as np

from ridgeline.records.facts import Trust
from ridgeline.records.trace import DeviceTime, Overlap, StepTime, StreamTime, Window
from ridgeline.trace.columns import DeviceOps, Kind
from ridgeline.trace.host_states import driving_lanes, synchronising
from ridgeline.trace.intervals import (
    NOTHING,
    Spans,
    clip,
    covered,
    intersect,
    merge,
    subtract,
    time_of,
    union,
)
from ridgeline.trace.links import Links
from ridgeline.trace.trace import DeviceProperties, Trace
from ridgeline.trace.window import Steps

_COMMUNICATION = ("nccl", "rccl", "oneccl", "msccl", "mscclpp")


def is_communication(kernel: str) -> bool:
    """Return whether a kernel of this name moves data between ranks."""
    name = kernel.lower()
    return any(word in name for word in _COMMUNICATION)


def busy_spans(ops: DeviceOps, window: Window) -> Spans:
    """Return when at least one of the operations ran inside the window."""
    return clip(union(ops.ts, ops.end, sorted_=True), window.start_ns, window.end_ns)


def devices(trace: Trace, window: Window, steps: Steps, trust: Trust) -> tuple[DeviceTime, ...]:
    ops = trace.device
    return tuple(
        _device(trace, ops.take(ops.device == device), int(device), window, steps, trust)
        for device in np.unique(ops.device)
    )


def properties_of(trace: Trace, device: int) -> DeviceProperties | None:
    """Return what the file says of a device. If all devices that it lists are alike, any of them
    will do: ROCm lists only one."""
    listed = trace.metadata.devices
    own = next((p for p in listed if p.id == device), None)
    alike = {(p.name, p.memory_bytes, p.cores) for p in listed}
    return own if own is not None or len(alike) != 1 else listed[0]


def _device(
    trace: Trace,
    ops: DeviceOps,
    device: int,
    window: Window,
    steps: Steps,
    trust: Trust,
) -> DeviceTime:
    busy = busy_spans(ops, window)
    properties = properties_of(trace, device)
    communicates = trace.names_where(ops.name, is_communication) & (ops.kind == Kind.KERNEL)
    compute = busy_spans(ops.take((ops.kind == Kind.KERNEL) & ~communicates), window)
    communication = busy_spans(ops.take(communicates), window)
    copies = busy_spans(ops.take(ops.kind == Kind.MEMCPY), window)
    unreliable = trust.confidence == "unreliable"
    inside = (ops.end > window.start_ns) & (ops.ts < window.end_ns)
    return DeviceTime(
        device=device,
        name=properties.name if properties is not None else "",
        rank=trace.metadata.rank,
        window=window,
        busy_ns=None if unreliable else busy.total,
        idle_ns=None if unreliable else window.ns - busy.total,
        kernel_ns=compute.total,
        communication_ns=communication.total,
        exposed_communication_ns=subtract(communication, compute).total,
        copy_ns=copies.total,
        exposed_copy_ns=subtract(copies, compute).total,
        operations=int(inside.sum()),
        streams=_streams(ops, window),
        steps=_steps(busy, steps, window),
        trust=trust,
    )


def _streams(ops: DeviceOps, window: Window) -> tuple[StreamTime, ...]:
    rows = [
        StreamTime(
            stream=int(stream),
            busy_ns=busy_spans(ops.take(ops.stream == stream), window).total,
            operations=int((ops.stream == stream).sum()),
        )
        for stream in np.unique(ops.stream)
    ]
    return tuple(sorted(rows, key=lambda row: -row.busy_ns))


def _steps(busy: Spans, steps: Steps, window: Window) -> tuple[StepTime, ...]:
    """Return each mark that reaches into the window. The part of a mark outside the window counts
    as idle."""
    work = covered(busy, steps.start, steps.end)
    last = int(steps.end[-1]) if len(steps) else 0
    return tuple(
        StepTime(
            name=steps.name(row),
            start_ns=int(steps.start[row]),
            dur_ns=int(steps.end[row] - steps.start[row]),
            busy_ns=int(work[row]),
            idle_ns=int(steps.end[row] - steps.start[row] - work[row]),
            whole=not (int(steps.end[row]) == last and window.end_ns > last),
        )
        for row in range(len(steps))
        if steps.end[row] > window.start_ns and steps.start[row] < window.end_ns
    )


def overlap(trace: Trace, links: Links, window: Window) -> Overlap:
    host = clip(_host(trace, links), window.start_ns, window.end_ns)
    device = clip(
        union(trace.device.ts, trace.device.end, sorted_=True), window.start_ns, window.end_ns
    )
    both = intersect(host, device).total
    host_ns, device_ns = host.total, device.total
    return Overlap(
        both_ns=both,
        host_ns=host_ns - both,
        device_ns=device_ns - both,
        neither_ns=window.ns - host_ns - device_ns + both,
        trust=_trust(trace),
    )


def _host(trace: Trace, links: Links) -> Spans:
    """Return when the host worked. Each thread is looked at alone, because one may work while
    another waits."""
    ops, calls = trace.ops, trace.calls
    waits = synchronising(trace, calls)
    working = NOTHING
    for lane in driving_lanes(trace, links):
        of_lane = calls.lane == lane
        busy = merge(time_of(ops, ops.lane == lane), time_of(calls, of_lane))
        working = merge(working, subtract(busy, time_of(calls, of_lane & waits)))
    return working


def _trust(trace: Trace) -> Trust:
    if not len(trace.device):
        return Trust(
            confidence="doubtful", why="the trace has no device work", codes=("no-device-work",)
        )
    if not len(trace.ops) and not len(trace.calls):
        return Trust(
            confidence="unreliable",
            why="the trace has no operators or runtime calls: no host",
            codes=("no-host",),
        )
    return Trust()

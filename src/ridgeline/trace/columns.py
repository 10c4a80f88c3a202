"""The columns of a trace: one table a sort of event, int64 nanoseconds, texts as codes.

A code is an index into the trace's texts; -1 says that the event did not carry the field. Within
a table events are ordered by start, the longer first where two start together, so that an
enclosing span comes before what it encloses.
"""

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int32]
Nanoseconds = NDArray[np.int64]
Numbers = NDArray[np.int64]

RAW: dict[str, str] = {
    "ts": "<i8",
    "dur": "<i8",
    "correlation": "<i8",
    "external": "<i8",
    "frame": "<i8",
    "parent": "<i8",
    "sequence": "<i8",
    "bytes": "<i8",
    "allocated": "<i8",
    "reserved": "<i8",
    "graph_node": "<i8",
    "name": "<i4",
    "category": "<i4",
    "lane": "<i4",
    "shape": "<i4",
    "info": "<i4",
    "device": "<i4",
    "stream": "<i4",
    "module": "<i4",
    "graph": "<i4",
    "forward_thread": "<i4",
    "device_type": "<i4",
    "phase": "|u1",
}
"""Every column a reader fills, in the order of the scanner's pointers."""


@dataclass(frozen=True, slots=True)
class Events:
    """Columns of equal length; row i of each is one event."""

    kind: NDArray[np.uint8]
    ts: Nanoseconds
    dur: Nanoseconds
    name: Codes
    lane: Codes
    """Index into `Trace.lanes`: the thread or the stream's row."""

    @property
    def end(self) -> Nanoseconds:
        return self.ts + self.dur

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: NDArray[Any] | slice) -> Self:
        """Return the rows that a mask, an index or a slice picks."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))


@dataclass(frozen=True, slots=True)
class Ops(Events):
    """Operators (`Trace.ops`) and named spans (`Trace.annotations`) on the host."""

    external: Numbers
    """Joins an operator to the runtime calls made while it was the innermost one."""
    sequence: Numbers
    """Joins a backward operator to its forward one."""
    forward_thread: Codes
    """The thread that ran the forward of a backward operator; else 0 or -1."""
    shape: Codes
    info: Codes


@dataclass(frozen=True, slots=True)
class Calls(Events):
    """Calls of the runtime or the driver: launches, copies, synchronisations, allocations."""

    correlation: Numbers
    """Joins a call to the device work it launched."""
    external: Numbers


@dataclass(frozen=True, slots=True)
class DeviceOps(Events):
    """Kernels, copies and fills as the device ran them."""

    device: Codes
    stream: Codes
    correlation: Numbers
    external: Numbers
    bytes: Numbers
    graph: Codes
    graph_node: Numbers
    info: Codes


@dataclass(frozen=True, slots=True)
class Syncs(Events):
    """The device's own records of synchronisation (newer traces)."""

    device: Codes
    stream: Codes
    correlation: Numbers
    info: Codes


@dataclass(frozen=True, slots=True)
class Frames(Events):
    """Python functions: `file(line): function`, or `nn.Module: Name_3`."""

    frame: Numbers
    parent: Numbers
    module: Codes


@dataclass(frozen=True, slots=True)
class Allocations(Events):
    """Allocations (bytes > 0) and releases (bytes < 0) of torch's allocators."""

    bytes: Numbers
    allocated: Numbers
    """The bytes in use after the event, on that device; -1 in traces before 2021."""
    reserved: Numbers
    device: Codes
    device_type: Codes
    """torch's numbers: 0 CPU, 1 CUDA."""


@dataclass(frozen=True, slots=True)
class Others(Events):
    """Everything else that has a time: device annotations, profiler overhead, instants."""

    external: Numbers
    info: Codes


class Kind(IntEnum):
    """The sort of one event."""

    OTHER = 0
    OP = 1
    """An operator on the host: aten::addmm, an autograd node, a compiled region."""
    ANNOTATION = 2
    """A span somebody named: ProfilerStep#3, record_function, Optimizer.step#Adam.step."""
    DEVICE_ANNOTATION = 3
    """The same span as the device saw it."""
    RUNTIME = 4
    """A call of the CUDA or HIP runtime."""
    DRIVER = 5
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    SYNC = 9
    """The device's own record of a synchronisation."""
    FRAME = 10
    """A Python function."""
    MEMORY = 11
    """One allocation (bytes > 0) or release (bytes < 0)."""
    OVERHEAD = 12
    """What the profiler itself cost: instrumentation, buffer flushes, full command buffers."""
    INSTANT = 13
    COUNTER = 14


_CATEGORIES = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.FRAME,
    "gpu_user_annotation": Kind.DEVICE_ANNOTATION,
    "cuda_runtime": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "runtime": Kind.RUNTIME,
    "cuda_driver": Kind.DRIVER,
    "privateuse1_driver": Kind.DRIVER,
    "xpu_driver": Kind.DRIVER,
    "kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "overhead": Kind.OVERHEAD,
}

_ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "ProfilerStep*")


def kind_of(phase: str, category: str, process: str = "") -> Kind:
    """Return the kind of an event by its phase, its category and, where it has none, its
    process."""
    if phase == "C":
        return Kind.COUNTER
    if phase in "iI":
        return Kind.MEMORY if category == "cpu_instant_event" else Kind.INSTANT
    if not category and phase == "X":
        return {"CPU functions": Kind.OP, "CUDA functions": Kind.KERNEL}.get(process, Kind.OTHER)
    return _CATEGORIES.get(category.lower(), Kind.OTHER)


def is_annotation(name: str) -> bool:
    """Return whether an operator of an old trace is a named span."""
    return name.startswith(_ANNOTATIONS)

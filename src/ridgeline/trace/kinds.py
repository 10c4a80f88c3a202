"""What sort of event a row is, the same name for every era of Kineto and every vendor.

Until 2022 categories were capitalised (`Kernel`, `Operator`, `Runtime`); AMD's HIP calls come as
`cuda_runtime`; the profiler before Kineto wrote no category, only a process called "CUDA
functions". Knows names, not times.
"""

from enum import IntEnum


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


DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)

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
    """The kind of an event by its phase, its category and, where it has none, its process."""
    if phase == "C":
        return Kind.COUNTER
    if phase in "iI":
        return Kind.MEMORY if category == "cpu_instant_event" else Kind.INSTANT
    if not category and phase == "X":
        return {"CPU functions": Kind.OP, "CUDA functions": Kind.KERNEL}.get(process, Kind.OTHER)
    return _CATEGORIES.get(category.lower(), Kind.OTHER)


def is_annotation(name: str) -> bool:
    """Spans that old traces list among the operators."""
    return name.startswith(_ANNOTATIONS)

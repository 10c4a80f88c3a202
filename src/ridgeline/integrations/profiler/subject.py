"""Says what a profiled object must be able to do, the records of its work and memory, and the units
and rules of the course. "MB" in its names is 1024 × 1024 bytes. The last part has the meters: a
timer, a memory profiler, and the timing of repeated calls."""

import sys
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from time import perf_counter
from typing import Any, Literal, Protocol

import numpy as np

from ridgeline.errors import RidgelineError

BYTES_PER_FLOAT32 = 4
KB_TO_BYTES = 1024
MB_TO_BYTES = 1024 * 1024

rng = np.random.default_rng(7)

Shape = tuple[int, ...]

Source = Literal["measured", "estimated"]
MAX_OVERHEAD_SHARE = 0.1
"""A pass that reaches less than this share of both ceilings is limited by neither, but by
overhead."""
_MIN_LATENCY_S = 1e-6
"""The shortest time that rates are computed with, so that a time of zero gives no infinite rate."""


def as_mb(size_bytes: float) -> float:
    return size_bytes / MB_TO_BYTES


def one_sample(shape: Shape, sample_dims: int) -> Shape:
    """Return the shape of one sample, with a batch dimension of 1. Dimension 0 of an input is the
    batch if the input has more dimensions than a sample."""
    return (1, *shape[1:]) if len(shape) > sample_dims else shape


def batch_of(shape: Shape, sample_dims: int) -> int:
    return prod(shape[:1]) if len(shape) > sample_dims else 1


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one forward pass on `batch` samples."""

    flops: int
    products: int
    """The part of `flops` in matrix products, convolutions and attention."""
    bytes: int
    batch: int
    ops: dict[str, int] = field(default_factory=dict)
    """FLOPs by operator (torch) or by layer type (NumPy)."""

    @property
    def flops_per_sample(self) -> int:
        return round(self.flops / self.batch)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one forward pass. `peak_bytes` includes the parameters and the input."""

    parameter_bytes: int
    activation_bytes: int
    peak_bytes: int
    source: Source


@dataclass(frozen=True, slots=True)
class Backward:
    """The time and work of a training step's passes on the whole batch. `flops` is None if the
    backward pass could not be counted; it then counts as twice the forward pass."""

    forward_ms: float
    backward_ms: float
    flops: int | None = None


@dataclass(frozen=True, slots=True)
class Roof:
    """Says what the machine can do at most, for the arithmetic that the subject uses."""

    flops_per_s: float
    bytes_per_s: float
    source: str
    limit: str = ""
    """What limits the pass (compute, memory or overhead), if the roofline was made per operator."""

    @property
    def ridge(self) -> float:
        """The FLOPs per byte at which arithmetic and memory take the same time."""
        return self.flops_per_s / self.bytes_per_s


class Subject(Protocol):
    def parameter_count(self) -> int: ...

    def parameter_bytes(self) -> int: ...

    def gradient_bytes(self) -> int: ...

    def example(self, shape: Shape) -> Any:
        """Return an input of this shape, of the kind that the subject takes."""

    def forward(self, example: Any) -> Callable[[], Any]:
        """Return a function that runs one forward pass as inference."""

    def time_forward(self, example: Any, warmup: int, iterations: int) -> tuple[float, ...]:
        """Return the time of each pass in milliseconds."""

    def count_shape(self, shape: Shape) -> Work:
        """Return the work on an input of this shape, or on one sample of it if possible."""

    def count_input(self, example: Any) -> Work:
        """Return the work on this input."""

    def footprint(self, example: Any) -> Footprint: ...

    def time_backward(
        self, example: Any, loss: Callable[..., Any] | None, warmup: int, iterations: int
    ) -> Backward | None:
        """Time the passes of a training step; return None if the subject has no backward pass."""

    def roof(self, example: Any) -> Roof: ...


def subject_of(model: Any) -> Subject:
    # A torch module exists only if torch is imported. Looking in sys.modules therefore suffices and
    # does not import torch in a process that never needed it.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from ridgeline.integrations.profiler.torch_subject import TorchSubject

        return TorchSubject(model)
    from ridgeline.integrations.profiler.array_subject import ArraySubject

    return ArraySubject(model)


def apply_loss(loss: Callable[..., Any], output: Any, zeros: Callable[[Any], Any]) -> Any:
    """Return the loss of the output, against a target of zeros if the loss needs a target."""
    try:
        return loss(output)
    except TypeError:
        return loss(output, zeros(output))


COURSE_ROOF = Roof(100e9, 10_000 * MB_TO_BYTES, "the course's assumption")
"""The machine that the rules of the course assume: 100 GFLOP/s, and 100 MB/s for each GFLOP/s. Its
ridge is 9.5 FLOP per byte, near that of many CPUs."""


def rates(flops: float, latency_ms: float, moved_mb: float, roof: Roof) -> dict[str, float]:
    seconds = max(latency_ms / 1e3, _MIN_LATENCY_S)
    gflops_per_second = flops / 1e9 / seconds
    return {
        "gflops_per_second": gflops_per_second,
        "memory_bandwidth_mbs": moved_mb / seconds,
        "computational_efficiency": min(gflops_per_second * 1e9 / roof.flops_per_s, 1.0),
    }


def bottleneck(gflops_per_second: float, memory_bandwidth_mbs: float, roof: Roof) -> dict[str, Any]:
    """Return the bottleneck: memory if the pass does fewer FLOPs per byte than the ridge."""
    memory = memory_bandwidth_mbs * MB_TO_BYTES * roof.ridge > gflops_per_second * 1e9
    return {
        "is_memory_bound": memory,
        "is_compute_bound": not memory,
        "bottleneck": "memory" if memory else "compute",
    }


def roofline(gflops_per_second: float, memory_bandwidth_mbs: float, roof: Roof) -> dict[str, Any]:
    """Return the share of the nearer ceiling that was reached, and what limits the pass. Far from
    both ceilings that is overhead (the interpreter, dispatch, launches), whatever the FLOPs per
    byte."""
    of_compute = gflops_per_second * 1e9 / roof.flops_per_s
    of_memory = memory_bandwidth_mbs * MB_TO_BYTES / roof.bytes_per_s
    share = max(of_compute, of_memory)
    nearer = "memory" if of_memory > of_compute else "compute"
    return {
        "roofline_bottleneck": roof.limit or ("overhead" if share < MAX_OVERHEAD_SHARE else nearer),
        "roofline_share": min(share, 1.0),
        "roof_source": roof.source,
    }


def _nothing() -> None: ...


def time_ms(
    call: Callable[[], Any],
    warmup: int,
    iterations: int,
    synchronize: Callable[[], None] = _nothing,
) -> tuple[float, ...]:
    """Return the time of each of `iterations` calls in milliseconds, after `warmup` untimed
    calls."""
    if iterations < 1 or warmup < 0:
        raise ValueError(
            f"measuring needs iterations >= 1 and warmup >= 0, got {iterations=} and {warmup=}"
        )
    for _ in range(warmup):
        call()
    samples = []
    for _ in range(iterations):
        synchronize()
        start = perf_counter()
        call()
        synchronize()
        samples.append((perf_counter() - start) * 1e3)
    return tuple(samples)


def median(samples: tuple[float, ...]) -> float:
    return float(np.median(samples))


class Timer(AbstractContextManager["Timer"]):
    """Measures wall time: `stop()` returns the milliseconds since `start()`. As a context manager
    it leaves them in `elapsed`."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self._started_s: float | None = None

    def start(self) -> None:
        self._started_s = perf_counter()

    def stop(self) -> float:
        if self._started_s is None:
            raise RuntimeError("Timer.stop() was called before Timer.start()")
        self.elapsed = (perf_counter() - self._started_s) * 1e3
        self._started_s = None
        return self.elapsed

    def __enter__(self) -> "Timer":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class MemoryProfiler(AbstractContextManager["MemoryProfiler"]):
    """Measures the memory that a block adds, in bytes. `allocated_memory` is still in use at the
    end. `peak_memory` is an upper bound: the sum of the peaks of Python, of torch on the CPU and of
    CUDA. `not_counted` says what neither contains, and why; it is "" if everything is counted."""

    def __init__(self) -> None:
        self.peak_memory = 0
        self.allocated_memory = 0
        self.not_counted = ""
        self._torch_block: AbstractContextManager[list[int]] | None = None
        self._torch_deltas: list[int] = []
        self._started_tracing = False
        self._start_bytes = 0
        self._start_device_bytes = 0

    @property
    def peak_memory_mb(self) -> float:
        return as_mb(self.peak_memory)

    @property
    def allocated_memory_mb(self) -> float:
        return as_mb(self.allocated_memory)

    def __enter__(self) -> "MemoryProfiler":
        self._begin_with_torch()
        # A program that uses tracemalloc itself keeps its trace; only the peak is reset.
        self._started_tracing = not tracemalloc.is_tracing()
        if self._started_tracing:
            tracemalloc.start()
        tracemalloc.reset_peak()
        self._start_bytes = tracemalloc.get_traced_memory()[0]
        device = _cuda()
        if device is not None:
            device.reset_peak_memory_stats()
            self._start_device_bytes = device.memory_allocated()
        return self

    def __exit__(self, *error: Any) -> None:
        current, peak = tracemalloc.get_traced_memory()
        if self._started_tracing:
            tracemalloc.stop()
        self.peak_memory = peak - self._start_bytes
        self.allocated_memory = max(current - self._start_bytes, 0)
        device = _cuda()
        if device is not None:
            self.peak_memory += device.max_memory_allocated() - self._start_device_bytes
            left = device.memory_allocated() - self._start_device_bytes
            self.allocated_memory += max(left, 0)
        self._end_with_torch(*error)

    def _begin_with_torch(self) -> None:
        self.not_counted, self._torch_block = "", None
        if "torch" not in sys.modules:
            return
        from ridgeline.measure.peak import cpu_allocations

        block = cpu_allocations()
        try:
            self._torch_deltas = block.__enter__()
        except RidgelineError as error:
            self.not_counted = f"torch's memory on the CPU: {error.message}"
        else:
            self._torch_block = block

    def _end_with_torch(self, *error: Any) -> None:
        if self._torch_block is None:
            if "torch" in sys.modules and not self.not_counted:
                self.not_counted = "torch's memory on the CPU: torch was imported in the block"
            return
        from ridgeline.measure.peak import highest

        self._torch_block.__exit__(*error)
        self.peak_memory += highest(self._torch_deltas)
        self.allocated_memory += max(sum(self._torch_deltas), 0)


def profile_memory(call: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Run `call(*args, **kwargs)` once. Return its `result`, its `peak_memory_mb`, the
    `allocated_memory_mb` that it left behind, and what was `not_counted`, with the reason."""
    with MemoryProfiler() as memory:
        result = call(*args, **kwargs)
    return {
        "result": result,
        "peak_memory_mb": memory.peak_memory_mb,
        "allocated_memory_mb": memory.allocated_memory_mb,
        "not_counted": memory.not_counted,
    }


def _cuda() -> Any:
    """Return torch.cuda if this process uses it already, else None: CUDA is never started here."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None

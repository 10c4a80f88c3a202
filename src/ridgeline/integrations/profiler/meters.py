"""Meters of time and memory: a timer, a memory profiler, and the timing of repeated calls."""

import sys
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.integrations.profiler.subject import as_mb


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        self._end_with_torch(kind, error, trace)

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

    def _end_with_torch(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._torch_block is None:
            if "torch" in sys.modules and not self.not_counted:
                self.not_counted = "torch's memory on the CPU: torch was imported in the block"
            return
        from ridgeline.measure.peak import highest

        self._torch_block.__exit__(kind, error, trace)
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

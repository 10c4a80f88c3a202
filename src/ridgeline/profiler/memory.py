"""Peak memory of Python and NumPy allocations, by tracemalloc; of CUDA where torch is using it.

Torch's CPU allocations do not pass through Python and are not seen here: `Profiler` measures those
on modules in another way.
"""

import sys
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from ridgeline.profiler.units import as_mb


class MemoryProfiler(AbstractContextManager["MemoryProfiler"]):
    """Sets `peak_memory` (bytes above the start, at most) and `allocated_memory` (bytes above the
    start, at the end)."""

    def __init__(self) -> None:
        self.peak_memory = 0
        self.allocated_memory = 0
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
        # A program that traces already keeps its trace: only the peak mark is moved.
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


def profile_memory(call: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Runs `call(*args, **kwargs)` once: its `result`, `peak_memory_mb` and the
    `allocated_memory_mb` that it left behind."""
    with MemoryProfiler() as memory:
        result = call(*args, **kwargs)
    return {
        "result": result,
        "peak_memory_mb": memory.peak_memory_mb,
        "allocated_memory_mb": memory.allocated_memory_mb,
    }


def _cuda() -> Any:
    """torch.cuda where this process has already put it to use; never the one to start it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None

"""Times calls on the wall clock."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np


def _nothing() -> None: ...


def time_ms(
    call: Callable[[], Any],
    warmup: int,
    iterations: int,
    synchronize: Callable[[], None] = _nothing,
) -> tuple[float, ...]:
    """Each of `iterations` calls in milliseconds, after `warmup` calls that are not timed."""
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
    """`start()` … `stop()` returns the milliseconds between; also a context manager, which leaves
    them in `elapsed`."""

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

"""The clocks: how one block of calls is timed.

The timer functions are bound when this module is imported, so that a program that patches `time`
does not change what is measured.
"""

import gc
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from resource import getrusage
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Protocol

from msgspec import Struct

from ridgeline.errors import RidgelineError, UsageError

_THIS_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)


class Reading(Struct, frozen=True, kw_only=True):
    """One block of calls. All figures are for the whole block."""

    total_ns: float
    """By the clock's own measure."""
    wall_ns: float
    cpu_ns: float
    """Processor time of the whole process: the second witness where the host is busy."""
    issue_ns: float | None = None
    """Until the calls returned, before waiting for the device."""
    thread_ns: float | None = None
    """Processor time of the calling thread alone; None if it was not read."""
    sleeps: int | None = None
    """Voluntary context switches of the calling thread: how often it gave its processor away to
    wait for something. None if the system does not count them."""


class Clock(Protocol):
    """Times blocks of calls. A test hands in its own."""

    @property
    def name(self) -> str:
        """How it times, for the record."""

    @property
    def shortest_ns(self) -> float:
        """The shortest block it times well."""

    def now_ns(self) -> int:
        """For budgets."""

    def time(
        self, call: Callable[[], object], calls: int, before: Callable[[], object] | None = None
    ) -> Reading:
        """Run `call` `calls` times and say what that took. `before` runs before each call, outside
        the timed span, which is then the sum over the calls."""


class WallClock:
    """perf_counter around the calls."""

    name = "wall"
    # perf_counter_ns steps by about 20 to 40 ns on Linux; 20 µs is a thousand of its smaller steps
    # and keeps the loop itself (30 ns a call) out of the third figure.
    shortest_ns = 20_000.0

    def now_ns(self) -> int:
        return perf_counter_ns()

    def time(
        self, call: Callable[[], object], calls: int, before: Callable[[], object] | None = None
    ) -> Reading:
        if before is not None:
            return _one_by_one(self, call, calls, before)
        with collection_paused():
            sleeps, thread = sleeps_so_far(), thread_time_ns()
            cpu = process_time_ns()
            start = perf_counter_ns()
            for _ in range(calls):
                call()
            end = perf_counter_ns()
            cpu = process_time_ns() - cpu
            thread = thread_time_ns() - thread
            slept = None if sleeps is None else (sleeps_so_far() or 0) - sleeps
        return Reading(
            total_ns=end - start, wall_ns=end - start, cpu_ns=cpu, thread_ns=thread, sleeps=slept
        )


class DeviceClock:
    """CUDA events around the calls, and the wall clock around both a device-wide wait.

    Events see only their own stream, so work on another one would look free; waiting for the whole
    device and reading the wall clock as well shows it.
    """

    name = "device events"
    # Events resolve 0.5 µs and cost a few µs to record; 100 µs keeps both under 5 %.
    shortest_ns = 100_000.0

    def __init__(self, device: str) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RidgelineError(
                f"there is no CUDA device here to time {device!r} on",
                hint="use device 'cpu', or run on a machine with a GPU",
            )
        self._torch = torch
        self._device = torch.device(device)
        with torch.cuda.device(self._device):
            self._begin = torch.cuda.Event(enable_timing=True)
            self._end = torch.cuda.Event(enable_timing=True)

    def now_ns(self) -> int:
        return perf_counter_ns()

    def time(
        self, call: Callable[[], object], calls: int, before: Callable[[], object] | None = None
    ) -> Reading:
        if before is not None:
            return _one_by_one(self, call, calls, before)
        cuda = self._torch.cuda
        with cuda.device(self._device), collection_paused():
            cuda.synchronize(self._device)
            cpu = process_time_ns()
            start = perf_counter_ns()
            self._begin.record()
            for _ in range(calls):
                call()
            issued = perf_counter_ns()
            self._end.record()
            cuda.synchronize(self._device)
            end = perf_counter_ns()
            cpu = process_time_ns() - cpu
        return Reading(
            total_ns=self._begin.elapsed_time(self._end) * 1e6,
            wall_ns=end - start,
            cpu_ns=cpu,
            issue_ns=issued - start,
        )


def _one_by_one(
    clock: Clock, call: Callable[[], object], calls: int, before: Callable[[], object]
) -> Reading:
    """The clock waits for the device before its span begins, so what `before` left running there
    is not in it."""
    readings = []
    for _ in range(calls):
        before()
        readings.append(clock.time(call, 1))
    issues = [r.issue_ns for r in readings if r.issue_ns is not None]
    threads = [r.thread_ns for r in readings if r.thread_ns is not None]
    sleeps = [r.sleeps for r in readings if r.sleeps is not None]
    return Reading(
        total_ns=sum(r.total_ns for r in readings),
        wall_ns=sum(r.wall_ns for r in readings),
        cpu_ns=sum(r.cpu_ns for r in readings),
        issue_ns=sum(issues) if issues else None,
        thread_ns=sum(threads) if threads else None,
        sleeps=sum(sleeps) if sleeps else None,
    )


def sleeps_so_far() -> int | None:
    """Return the voluntary context switches of this thread so far; None except on Linux, which
    alone counts them for a thread."""
    return None if _THIS_THREAD is None else getrusage(_THIS_THREAD).ru_nvcsw


def clock_for(device: str) -> Clock:
    """The clock that suits a device: "cpu", "cuda" or "cuda:N"."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return WallClock()
    if kind == "cuda":
        return DeviceClock(device)
    raise UsageError(f"cannot time on device {device!r}: expected 'cpu', 'cuda' or 'cuda:N'")


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection inside a sample. Only there: over a whole run, cycles that hold tensors
    would pile up until memory ran out."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

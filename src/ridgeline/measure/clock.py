"""Clocks that time blocks of calls, and the deadline of a call that may take many of them.

One `Deadline` is made when a command begins and is handed to every stage. Each stage asks how much
time is left; work that does not fit is not begun, and a child process that runs beyond the deadline
is ended.

The timer functions are bound when this module is imported, so that a program that patches `time`
does not change what is measured.
"""

import resource
from collections.abc import Callable
from resource import getrusage
from time import monotonic, perf_counter_ns, process_time_ns, thread_time_ns
from typing import Protocol

from msgspec import Struct

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.measure.collection import collection_paused

_THIS_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)


class Reading(Struct, frozen=True, kw_only=True):
    """The measured times of one block of calls. All figures are for the whole block."""

    total_ns: float
    """Duration by the clock that was asked: wall time or device time."""
    wall_ns: float
    cpu_ns: float
    """Processor time of the whole process: a second measure for when the host is busy."""
    issue_ns: float | None = None
    """Host time until the calls returned, before waiting for the device; None on a CPU."""
    thread_ns: float | None = None
    """Processor time of the calling thread alone; None if it was not read."""
    sleeps: int | None = None
    """Voluntary context switches of the calling thread: how often it gave its processor away to
    wait for something. None if the system does not count them."""


class Clock(Protocol):
    """Times blocks of calls. Tests pass a clock of their own."""

    @property
    def name(self) -> str:
        """How the clock times, as results report it."""

    @property
    def shortest_ns(self) -> float:
        """The shortest block that the clock times well."""

    def now_ns(self) -> int:
        """Return the time now, for budgets."""

    def time(
        self, call: Callable[[], object], calls: int, before: Callable[[], object] | None = None
    ) -> Reading:
        """Run `call` `calls` times and return what that took. `before` runs before each call,
        outside the timed span, which is then the sum over the calls."""


class _BlockClock:
    """Times blocks of calls, or calls one by one where something is done before each."""

    def now_ns(self) -> int:
        return perf_counter_ns()

    def time(
        self, call: Callable[[], object], calls: int, before: Callable[[], object] | None = None
    ) -> Reading:
        if before is None:
            return self._time(call, calls)
        return _one_by_one(self._time, call, calls, before)

    def _time(self, call: Callable[[], object], calls: int) -> Reading:
        raise NotImplementedError


class WallClock(_BlockClock):
    """Reads perf_counter before and after the calls."""

    name = "wall"
    # perf_counter_ns advances in steps of 20 to 40 ns on Linux. 20 µs are 500 to 1000 such steps,
    # so the resolution costs 0.2 % at most.
    shortest_ns = 20_000.0

    def _time(self, call: Callable[[], object], calls: int) -> Reading:
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


class DeviceClock(_BlockClock):
    """Records CUDA events before and after the calls, and reads the wall clock as well.

    Events see only their own stream, so work on another stream would look free. The wall clock is
    read after waiting for the whole device, and shows such work.
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

    def _time(self, call: Callable[[], object], calls: int) -> Reading:
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
    time: Callable[[Callable[[], object], int], Reading],
    call: Callable[[], object],
    calls: int,
    before: Callable[[], object],
) -> Reading:
    """Time the calls one by one and return the sums. `time` waits for the device before its span
    begins, so work that `before` left running on the device is not counted."""
    readings = []
    for _ in range(calls):
        before()
        readings.append(time(call, 1))
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
    """Return the clock for a device: "cpu", "cuda" or "cuda:N"."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return WallClock()
    if kind == "cuda":
        return DeviceClock(device)
    raise UsageError(f"cannot time on device {device!r}: expected 'cpu', 'cuda' or 'cuda:N'")


class BudgetEnded(Exception):
    """Raised when the budget ends before a stage is over."""

    def __init__(self, stage: str, about: str = "") -> None:
        super().__init__(stage, about)
        self.stage = stage
        """The stage that was not over, by the name of the request to the child process."""
        self.about = about
        """The variant or the program that the stage was for."""


class Deadline:
    """The moment by which a call has to be over."""

    def __init__(
        self,
        budget_s: float,
        *,
        began_s: float | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`began_s` is when the call began, by the clock `now`; the default is this moment."""
        self.budget_s = budget_s
        self._now = now
        self._began_s = now() if began_s is None else began_s

    def left_s(self) -> float:
        """Return the seconds left; the number is negative once the deadline has passed."""
        return self.budget_s - self.spent_s()

    def spent_s(self) -> float:
        """Return the seconds since the call began."""
        return self._now() - self._began_s

    def less(self, reserve_s: float) -> "Deadline":
        """Return a deadline for the same call that is `reserve_s` earlier, so that this time is
        left for what comes afterwards."""
        return Deadline(self.budget_s - reserve_s, began_s=self._began_s, now=self._now)

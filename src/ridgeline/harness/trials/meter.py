"""The energy of a trial's timed steps, by the machine's own counters: of the GPU the program works
on (NVML), else of the processor's packages (RAPL). Read twice where nothing goes wrong: where the
timed steps begin, and where the last one ends."""

from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter_ns
from typing import Any

from ridgeline.machine import nvml
from ridgeline.machine.telemetry import PackageEnergy

LEAST_NS = {"cuda": 1_000_000_000, "cpu": 50_000_000}
"""NVML's counter moves every 20 to 100 ms, RAPL's every one: a shorter time is off by over 10 %
on a GPU. A lag of the device behind the host is the same at both ends, and cancels."""
BETWEEN_NS = 500_000_000
"""A reading takes up to 0.1 ms; the program may end before its steps are taken."""


class Meter:
    """One for the trial. `ready` before anything is timed: NVML takes 10 ms and more to start."""

    def __init__(self, torch: Any, joules: Callable[[], float | None] | None = None) -> None:
        self._torch = torch
        self._joules = joules
        self._kind = "cpu"
        self._open = ExitStack()
        self._first: tuple[int, int, float] | None = None
        self._last: tuple[int, int, float] | None = None

    def ready(self) -> None:
        if self._joules is None:
            cuda = self._torch.cuda.is_initialized()
            self._kind = "cuda" if cuda else "cpu"
            self._joules = self._of_device() if cuda else PackageEnergy().joules

    def begin(self, step: int, now_ns: int | None = None) -> None:
        """`step` is the first that is timed."""
        self.ready()
        self._first = self._last = self._read(step, now_ns)

    def ended(self, step: int, last: bool, now_ns: int | None = None) -> None:
        """The steps before `step` have ended."""
        if self._last is None:
            return
        now = perf_counter_ns() if now_ns is None else now_ns
        if last or now - self._last[1] >= BETWEEN_NS:
            self._last = self._read(step, now)

    @property
    def joules(self) -> float | None:
        """Of a step, on average."""
        if self._first is None or self._last is None:
            return None
        steps, passed, spent = (self._last[at] - self._first[at] for at in range(3))
        if steps < 1 or passed < LEAST_NS[self._kind] or spent <= 0:
            return None
        return spent / steps

    def close(self) -> None:
        self._open.close()

    def _read(self, step: int, now_ns: int | None) -> tuple[int, int, float] | None:
        found = self._joules() if self._joules is not None else None
        now = perf_counter_ns() if now_ns is None else now_ns
        return None if found is None else (step, now, found)

    def _of_device(self) -> Callable[[], float | None]:
        from ridgeline.machine.identity import address

        library = self._open.enter_context(nvml.session())
        torch = self._torch
        handle = None
        if library is not None:
            here = torch.device("cuda", torch.cuda.current_device())
            handle = nvml.find(library, address(here))

        def joules() -> float | None:
            if handle is None:
                return None
            found = nvml.ask(library, "nvmlDeviceGetTotalEnergyConsumption", handle)
            return None if found is None else float(found) / 1000

        return joules

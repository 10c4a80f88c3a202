"""A workload whose truth is known: one matrix product, and the same with real extra work in it.

The extra is work, not time added to samples nor waiting until a clock says so: on a busy host a
call of 2.6 ms of processor time took 6.7 ms of wall time, and 10 % of the wall time, waited for,
looked like 30 %. So the calling thread spins through as many turns as 10 % of its own processor
time hold; a GPU spins on the same stream.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import thread_time_ns

import torch

from ridgeline.measure.clock import Clock

Spend = Callable[[float], None]
"""Spends nanoseconds of the processor's time."""

SIZES = {"cpu": 384, "cuda": 3072}
"""About 1 ms: some ten fit into a sample, and 2 % of it are a thousand turns."""
_CALLS = 20  # that say what a call takes
_TURNS = 200_000  # 4 ms
_CYCLES = 1_000_000  # 0.5 to 1 ms, of which the launch is a few µs


class Product:
    """The baseline: a float32 matrix product into memory of its own."""

    def __init__(self, device: torch.device) -> None:
        self.size = SIZES[device.type]
        generator = torch.Generator().manual_seed(0)
        shape = (self.size, self.size)
        self._left, self._right = (
            torch.randn(shape, generator=generator).to(device) for _ in range(2)
        )
        self._out = torch.empty(shape, device=device)

    def __call__(self) -> torch.Tensor:
        return torch.mm(self._left, self._right, out=self._out)

    def __str__(self) -> str:
        return f"{self.size} × {self.size} matrix product"


class Slowed:
    """A call and a share of its time on top."""

    def __init__(self, call: Callable[[], object], effect: float, spend: Spend) -> None:
        self._call = call
        self._spend = spend
        self.effect = effect
        self.extra_ns = 0.0

    def __call__(self) -> object:
        result = self._call()
        self._spend(self.extra_ns)
        return result


def calibrate(slowed: Sequence[Slowed], call_ns: float) -> None:
    for one in slowed:
        one.extra_ns = one.effect * call_ns


def work_of(call: Callable[[], object], device: torch.device, clock: Clock) -> float:
    """What a call takes of the processor that the extra is taken from, in nanoseconds: the calling
    thread's, or the GPU's."""
    if device.type == "cuda":
        return median(clock.time(call, 1).total_ns for _ in range(_CALLS))
    return median(_thread_ns(call) for _ in range(_CALLS))


def spender(device: torch.device, clock: Clock) -> Spend:
    """How work is spent on a device. A turn is counted, not timed, and so is slowed by whatever
    slows the product."""
    if device.type == "cuda":
        cycle_ns = work_of(lambda: torch.cuda._sleep(_CYCLES), device, clock) / _CYCLES
        return lambda ns: torch.cuda._sleep(round(ns / cycle_ns))
    turn_ns = work_of(lambda: _turn(_TURNS), device, clock) / _TURNS
    return lambda ns: _turn(round(ns / turn_ns))


def _turn(turns: int) -> None:
    for _ in range(turns):
        pass


def _thread_ns(call: Callable[[], object]) -> float:
    start = thread_time_ns()
    call()
    return thread_time_ns() - start

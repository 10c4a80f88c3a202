"""The clocks and memory meters that a student holds in the hand."""

import tracemalloc

import numpy as np
import pytest
import torch

from ridgeline.integrations.profiler import MemoryProfiler, Profiler, Timer, profile_memory, subject


class Ticking:
    """A clock that moves only when a call is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(subject, "perf_counter", lambda: self.now_s)


class Model:
    """Takes the given milliseconds, one after another."""

    def __init__(self, ticking: Ticking, durations_ms: list[float]) -> None:
        self.ticking = ticking
        self.durations_ms = durations_ms
        self.calls = 0

    def forward(self, x: object) -> object:
        self.ticking.now_s += self.durations_ms[self.calls] / 1e3
        self.calls += 1
        return x


def test_latency_is_the_median_after_exactly_the_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    profiler, model = Profiler(), Model(Ticking(monkeypatch), [50.0, 50.0, 3.0, 1.0, 2.0])
    assert profiler.measure_latency(model, 0, warmup=2, iterations=3) == pytest.approx(2.0)
    assert model.calls == 5
    assert profiler.last_samples_ms == pytest.approx((3.0, 1.0, 2.0))
    assert profiler.measurements["measure_latency"] == pytest.approx(2.0)
    assert profiler.latency_summary().max_ns == pytest.approx(3e6)


@pytest.mark.parametrize(("warmup", "iterations"), [(1, 0), (-1, 3)])
def test_impossible_counts_raise_a_readable_error(warmup: int, iterations: int) -> None:
    with pytest.raises(ValueError, match="iterations >= 1 and warmup >= 0"):
        Profiler().measure_latency(np.sin, 1.0, warmup=warmup, iterations=iterations)


def test_a_function_of_nothing_can_be_timed() -> None:
    assert Profiler().measure_latency(lambda: sum(range(100)), None, iterations=3) > 0


def test_the_block_under_the_profiler_is_timed_in_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticking = Ticking(monkeypatch)
    with Profiler() as profiler:
        ticking.now_s += 0.25
    assert profiler.elapsed == pytest.approx(250.0)


def test_timer_counts_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking, timer = Ticking(monkeypatch), Timer()
    timer.start()
    ticking.now_s += 0.002
    assert timer.stop() == timer.elapsed == pytest.approx(2.0)
    with pytest.raises(RuntimeError, match="before"):
        timer.stop()


def test_memory_profiler_distinguishes_peak_and_remaining_memory() -> None:
    with MemoryProfiler() as memory:
        kept = np.ones(2**17)
        np.ones(2**20).sum()
    assert memory.peak_memory_mb == pytest.approx(9.0, abs=0.1)
    assert memory.allocated_memory_mb == pytest.approx(kept.nbytes / 2**20, abs=0.1)
    assert not tracemalloc.is_tracing()


def test_a_tracemalloc_trace_of_the_program_continues() -> None:
    tracemalloc.start()
    try:
        found = profile_memory(np.ones, 2**17)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert found["peak_memory_mb"] == pytest.approx(1.0, abs=0.1)
    assert found["result"].size == 2**17
    assert found["not_counted"] == ""


def test_memory_of_torch_on_the_cpu_is_counted() -> None:
    def work() -> torch.Tensor:
        torch.ones(2**20).sum()  # 4 MiB, gone again
        return torch.ones(2**18)  # 1 MiB, stays

    found = profile_memory(work)
    assert found["result"].nbytes == 2**20
    assert found["peak_memory_mb"] == pytest.approx(4.0, abs=0.2)
    assert found["allocated_memory_mb"] == pytest.approx(1.0, abs=0.2)
    assert found["not_counted"] == ""
    assert not torch._C._autograd._profiler_enabled()


def test_memory_that_cannot_be_counted_is_named() -> None:
    with torch.profiler.profile():
        found = profile_memory(torch.ones, 2**20)
    assert found["not_counted"] != ""


def test_an_exception_in_the_block_ends_the_counting() -> None:
    with pytest.raises(ZeroDivisionError), MemoryProfiler():
        1 / 0  # noqa: B018
    assert not torch._C._autograd._profiler_enabled()
    assert not tracemalloc.is_tracing()

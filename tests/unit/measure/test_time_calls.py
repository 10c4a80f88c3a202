"""Timing on a simulated clock: what is warm-up, how long it goes on, what it warns of."""

import gc
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.measure.timing import time_calls

MS = 1e6
SECOND = 1e9


def noisy(level: float, spread: float = 0.02, seed: int = 0) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield level * (1 + spread * rng.normal())


def nothing() -> None:
    pass


def test_a_compiling_first_call_is_warm_up_and_kept(fake_clock: Any) -> None:
    clock = fake_clock(chain([5 * SECOND, 40 * MS], noisy(10 * MS)))
    latency = time_calls(nothing, clock=clock)
    assert latency.warmup_ns[:2] == (5 * SECOND, 40 * MS)
    assert latency.summary.max_ns < 12 * MS
    assert latency.summary.median_ns == pytest.approx(10 * MS, rel=0.02)
    assert latency.steady
    assert latency.warnings == ()


def test_warm_up_lasts_until_the_timings_are_steady(fake_clock: Any) -> None:
    falling = (10 * MS * (1 + 2 * np.exp(-at / 20)) for at in range(150))
    latency = time_calls(nothing, clock=fake_clock(chain(falling, noisy(10 * MS))), warmup_s=10)
    assert len(latency.warmup_ns) >= 60  # at 60 the level is 10 % too high still
    assert latency.steady
    assert latency.summary.median_ns == pytest.approx(10 * MS, rel=0.02)


def test_warm_up_that_outlasts_its_limit_is_moved_out_of_the_samples(fake_clock: Any) -> None:
    series = chain(repeat(20 * MS, 20), noisy(10 * MS))
    latency = time_calls(nothing, clock=fake_clock(series), warmup_s=0.1, budget_s=2)
    assert len(latency.warmup_ns) == 20
    assert latency.summary.max_ns < 12 * MS
    assert latency.steady


def test_a_drift_is_reported_as_not_steady_with_every_sample_kept(fake_clock: Any) -> None:
    clock = fake_clock(10 * MS * (1 + at / 100) for at in range(10_000))
    latency = time_calls(nothing, clock=clock, warmup_s=0)
    assert not latency.steady
    assert any("no steady state" in line for line in latency.warnings)
    assert len(latency.samples_ns) + len(latency.warmup_ns) == len(clock.blocks)


def test_a_change_in_the_second_half_is_not_steady(fake_clock: Any) -> None:
    series = chain(repeat(10 * MS, 150), repeat(14 * MS))
    latency = time_calls(nothing, clock=fake_clock(series), warmup_s=0, budget_s=2.5)
    assert not latency.steady
    assert latency.summary.min_ns == 10 * MS


def test_short_calls_are_timed_in_blocks_the_clock_resolves(fake_clock: Any) -> None:
    clock = fake_clock(noisy(100.0), shortest_ns=20_000.0)
    latency = time_calls(nothing, clock=clock, budget_s=0.1)
    assert 200 <= latency.block_calls <= 420
    assert latency.summary.median_ns == pytest.approx(100.0, rel=0.02)
    assert latency.wall_median_ns == pytest.approx(100.0, rel=0.02)


def test_a_block_sized_by_slow_first_calls_is_sized_again(fake_clock: Any) -> None:
    clock = fake_clock(chain([90 * MS, 5 * MS, 1 * MS], noisy(100.0)))
    latency = time_calls(nothing, clock=clock, budget_s=0.1)
    assert 200 <= latency.block_calls <= 420
    assert latency.summary.median_ns == pytest.approx(100.0, rel=0.02)


def test_a_call_the_clock_resolves_is_timed_alone(fake_clock: Any) -> None:
    assert time_calls(nothing, clock=fake_clock(noisy(1 * MS))).block_calls == 1


def test_sampling_ends_with_the_budget(fake_clock: Any) -> None:
    clock = fake_clock(noisy(10 * MS, 0.001))
    latency = time_calls(nothing, clock=clock, budget_s=2.0)
    assert 195 <= len(latency.samples_ns) <= 201
    assert latency.summary.p95_ns is not None
    assert clock.now_ns() <= 3.1 * SECOND


def test_sampling_ends_at_max_samples(fake_clock: Any) -> None:
    latency = time_calls(nothing, clock=fake_clock(noisy(1 * MS)), max_samples=150)
    assert len(latency.samples_ns) <= 150
    assert len(latency.warmup_ns) <= 160


def test_a_call_slower_than_the_budget_still_gets_five_samples(fake_clock: Any) -> None:
    clock = fake_clock(noisy(3 * SECOND))
    latency = time_calls(nothing, clock=clock, budget_s=2.0)
    assert len(latency.samples_ns) == 5
    assert len(clock.blocks) == 6  # one to warm up
    assert latency.summary.p95_ns is None


def test_a_call_of_a_minute_gets_three_samples_and_a_warning(fake_clock: Any) -> None:
    clock = fake_clock(noisy(60 * SECOND))
    latency = time_calls(nothing, clock=clock)
    assert len(latency.samples_ns) == 3
    assert any("60 s, so only 3 samples" in line for line in latency.warnings)


def test_a_minute_of_compiling_does_not_make_the_call_slow(fake_clock: Any) -> None:
    latency = time_calls(nothing, clock=fake_clock(chain([60 * SECOND], noisy(5 * MS))))
    assert latency.summary.count >= 100
    assert latency.warmup_ns[0] == 60 * SECOND


def test_a_wide_spread_gives_a_warning(fake_clock: Any) -> None:
    latency = time_calls(nothing, clock=fake_clock(noisy(10 * MS, 0.3)))
    assert any("spreads over" in line for line in latency.warnings)


def test_a_busy_host_shows_in_processor_time(fake_clock: Any) -> None:
    busy = time_calls(nothing, clock=fake_clock(noisy(10 * MS), cpu_share=0.5))
    quiet = time_calls(nothing, clock=fake_clock(noisy(10 * MS), cpu_share=1.9))
    assert any("a processor for 50% of the time" in line for line in busy.warnings)
    assert quiet.warnings == ()


def test_correlated_samples_give_a_warning(fake_clock: Any) -> None:
    levels = np.repeat(np.random.default_rng(0).normal(10, 0.3, size=400), 4) * MS
    latency = time_calls(nothing, clock=fake_clock(iter(levels)), warmup_s=0)
    assert any("resemble each other" in line for line in latency.warnings)


def test_work_on_another_stream_gives_a_warning(fake_clock: Any) -> None:
    def on_device(event_share: float) -> Any:
        return fake_clock(
            noisy(10 * MS),
            name="device events",
            event_share=event_share,
            issue_share=0.1,
            cpu_share=0.1,
        )

    hidden = time_calls(nothing, "cuda", clock=on_device(0.2))
    seen = time_calls(nothing, "cuda", clock=on_device(0.97))
    assert any("20% of the wall time" in line for line in hidden.warnings)
    assert seen.warnings == ()
    assert seen.clock == "device events"
    assert seen.issue_median_ns == pytest.approx(1 * MS, rel=0.02)
    assert seen.wall_median_ns == pytest.approx(seen.summary.median_ns / 0.97, rel=0.01)


def test_progress_is_reported_in_order_and_never_beyond_one(fake_clock: Any) -> None:
    told: list[tuple[str, float]] = []
    clock = fake_clock(noisy(10 * MS))
    time_calls(nothing, clock=clock, on_progress=lambda phase, share: told.append((phase, share)))
    phases = [phase for phase, _ in told]
    assert phases == sorted(phases, reverse=True)
    assert set(phases) == {"warming up", "sampling"}
    assert all(0 <= share <= 1 for _, share in told)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("the user's own")])
def test_an_error_of_the_call_is_passed_on_and_collection_is_on_again(
    error: BaseException,
) -> None:
    seen: list[bool] = []

    def call() -> None:
        seen.append(gc.isenabled())
        if len(seen) > 3:
            raise error

    assert gc.isenabled()
    with pytest.raises(type(error)) as caught:
        time_calls(call, budget_s=0.01)
    assert caught.value is error
    assert gc.isenabled()
    assert not any(seen)


def test_collection_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        time_calls(nothing, budget_s=0.001, max_samples=5)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_real_clock_gives_a_whole_record() -> None:
    latency = time_calls(lambda: sum(range(1000)), budget_s=0.05, max_samples=20)
    assert latency.clock == "wall"
    assert latency.issue_median_ns is None
    assert 0 < latency.summary.min_ns <= latency.summary.median_ns


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(UsageError, match="'tpu'"):
        time_calls(nothing, "tpu")


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RidgelineError, match="no CUDA device"):
        time_calls(nothing, "cuda")

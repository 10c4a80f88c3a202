"""What a step takes in the long run: bursts are averaged, a stall is not."""

import random

import pytest

from ridgeline.statistics.samples import pace


def test_equal_steps_have_their_median_as_pace() -> None:
    rng = random.Random(0)
    times = [20 + rng.gauss(0, 0.5) for _ in range(60)]
    assert pace(times) == pytest.approx(20, rel=0.02)


def test_a_stall_does_not_count() -> None:
    times = [20.0] * 60
    times[33] = 900.0
    assert pace(times) == 20.0


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_batches_that_arrive_in_bursts_have_their_mean_as_pace(workers: int) -> None:
    """In the long run, the loader is as fast as without workers, though most steps do not wait."""
    rng = random.Random(workers)
    times = [
        (20.0 * workers - 2 * (workers - 1) if at % workers == 0 else 2.0) * rng.uniform(0.95, 1.05)
        for at in range(60)
    ]
    assert pace(times) == pytest.approx(20, rel=0.12)


def test_mostly_slow_steps_are_not_taken_for_all() -> None:
    assert pace([16.0, 16.0, 16.0, 2.0] * 15) == pytest.approx(12.5, rel=0.05)


def test_slow_first_steps_are_excluded() -> None:
    assert pace([500.0, 200.0, *([10.0, 10.1] * 20)]) == pytest.approx(10, rel=0.02)


def test_few_steps_have_a_pace_too() -> None:
    assert pace([10.0]) == 10.0
    assert pace([10.0, 12.0]) == pytest.approx(11, rel=0.1)
    assert pace([0.0, 0.0, 0.0]) == 0.0

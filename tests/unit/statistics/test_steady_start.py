"""Where steady state begins, on series whose answer is known. Seeds are fixed; the shares asked
for leave room for other seeds, too."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeline.statistics.samples import lag1_correlation, steady_start

Floats = NDArray[np.float64]
Series = Callable[[np.random.Generator], Floats]


def answers(series: Series, repeats: int = 60) -> list[int | None]:
    return [steady_start(series(np.random.default_rng(seed)).tolist()) for seed in range(repeats)]


def autoregressive(rng: np.random.Generator, count: int, lag1: float) -> Floats:
    noise = rng.normal(size=count)
    series = np.empty(count)
    series[0] = noise[0]
    for at in range(1, count):
        series[at] = lag1 * series[at - 1] + np.sqrt(1 - lag1**2) * noise[at]
    return series


def share(found: list[int | None], wanted: Callable[[int | None], bool]) -> float:
    return sum(map(wanted, found)) / len(found)


@pytest.mark.parametrize("count", [8, 30, 100, 400])
def test_pure_noise_is_steady_from_the_start(count: int) -> None:
    found = answers(lambda rng: 10 + rng.normal(size=count) * 0.5)
    assert share(found, lambda start: start is not None and start <= 2) >= 0.9


@pytest.mark.parametrize("count", [30, 100, 300])
def test_correlated_noise_is_not_a_change_of_level(count: int) -> None:
    found = answers(lambda rng: 10 * np.exp(0.14 * autoregressive(rng, count, 0.45)))
    assert share(found, lambda start: start is not None and start <= 2) >= 0.85


@pytest.mark.parametrize("count", [30, 100, 300])
def test_heavy_tails_are_not_changes(count: int) -> None:
    found = answers(lambda rng: 10 + rng.pareto(2, size=count))
    assert share(found, lambda start: start is not None and start <= 2) >= 0.9


@pytest.mark.parametrize("place", [1, 20, 39])
def test_one_outlier_of_any_size_is_not_a_change(place: int) -> None:
    series = 10 + np.random.default_rng(1).normal(size=40) * 0.1
    series[place] = 1e6
    assert steady_start(series.tolist()) == 0


@pytest.mark.parametrize("count", [5, 20, 100])
def test_a_compiling_first_call_is_cut_and_nothing_else(count: int) -> None:
    found = answers(lambda rng: np.append(5000, 10 + rng.normal(size=count) * 0.3))
    assert 0 not in found
    assert share(found, lambda start: start in (1, 2)) >= 0.9


def test_several_slow_calls_at_the_head_are_cut() -> None:
    series = [900.0, 400.0, 60.0, *(10 + 0.1 * np.sin(np.arange(50)))]
    assert steady_start(series) == 3


def test_steady_state_begins_after_a_step() -> None:
    def step(rng: np.random.Generator) -> Floats:
        return np.where(np.arange(100) < 40, 11.0, 10.0) + rng.normal(size=100) * 0.2

    assert share(answers(step), lambda start: start is not None and 38 <= start <= 42) >= 0.9


def test_steady_state_begins_in_the_flat_part_of_an_exponential_warm_up() -> None:
    def warming(rng: np.random.Generator) -> Floats:
        return 10 + 10 * np.exp(-np.arange(200) / 15) + rng.normal(size=200) * 0.2

    # After 30 samples the level is 13 % too high still, after 100 a thousandth.
    assert share(answers(warming), lambda start: start is not None and 30 <= start <= 120) >= 0.85


@pytest.mark.parametrize("count", [16, 60, 300])
@pytest.mark.parametrize("slope", [-0.4, 0.5])
def test_a_drift_is_never_steady(count: int, slope: float) -> None:
    found = answers(
        lambda rng: 10 * (1 + slope * np.arange(count) / count + 0.02 * rng.normal(size=count))
    )
    assert share(found, lambda start: start is None) >= 0.95


def test_five_samples_that_fall_each_time_are_not_steady() -> None:
    assert steady_start([10.0, 9.0, 8.0, 7.0, 6.0]) is None


def test_a_change_with_too_little_after_it_is_not_steady() -> None:
    series = np.where(np.arange(100) < 90, 11.0, 10.0)
    series = series + np.random.default_rng(0).normal(size=100) * 0.1
    assert steady_start(series.tolist()) is None


def test_a_difference_nobody_would_notice_is_no_change() -> None:
    series = [10.0] * 50 + [10.1] * 50
    assert steady_start(series) == 0


def test_equal_samples_are_steady() -> None:
    assert steady_start([5.0] * 30) == 0
    assert steady_start([0.0] * 30) == 0


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, 1.0]])
def test_fewer_than_three_samples_are_not_steady(samples: list[float]) -> None:
    assert steady_start(samples) is None


def test_lag1_correlation_is_near_what_made_the_series() -> None:
    rng = np.random.default_rng(0)
    assert lag1_correlation(autoregressive(rng, 2000, 0.6)) == pytest.approx(0.6, abs=0.06)
    assert lag1_correlation(rng.normal(size=2000)) < 0.06
    assert lag1_correlation([1.0] * 50) == 0.0
    assert lag1_correlation([1.0, 2.0]) == 0.0

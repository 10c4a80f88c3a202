"""The ratio of two variants: its value, its interval, and the inputs that are refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeline.statistics.paired import estimate, paired_ratio, trimmed_mean

Floats = NDArray[np.float64]
times = st.floats(1.0, 1e12)
variants = st.lists(st.tuples(times, times), min_size=1, max_size=25)


def noisy(rounds: int, ratio: float, *, sigma: float = 0.1, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    return np.exp(sigma * rng.normal(size=rounds)), np.exp(sigma * rng.normal(size=rounds)) / ratio


def autoregressive(rng: np.random.Generator, count: int, lag1: float) -> Floats:
    steps = rng.normal(size=count)
    steps[1:] *= np.sqrt(1 - lag1**2)
    series = np.empty(count)
    carried = 0.0
    for at in range(count):
        carried = lag1 * carried + steps[at]
        series[at] = carried
    return series


def test_twice_as_fast_is_a_ratio_of_two() -> None:
    found = estimate([20.0] * 8, [10.0] * 8, alpha=0.05, seed=0)
    assert (found.ratio, found.ci_low, found.ci_high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.p_value == 0.0
    assert found.rounds == 8
    assert found.level == 0.95


def test_equal_times_are_a_ratio_of_one_without_an_interval() -> None:
    found = estimate([3.0] * 8, [3.0] * 8, alpha=0.05, seed=0)
    assert (found.ratio, found.ci_low, found.ci_high, found.p_value) == (1.0, 1.0, 1.0, 1.0)


def test_a_slow_round_cancels_in_the_ratio() -> None:
    base, candidate = noisy(40, 1.1)
    weather = np.exp(np.random.default_rng(9).normal(size=40))
    calm = estimate(base, candidate, alpha=0.05, seed=1)
    stormy = estimate(base * weather, candidate * weather, alpha=0.05, seed=1)
    assert stormy.ratio == pytest.approx(calm.ratio)
    assert (stormy.ci_low, stormy.ci_high) == pytest.approx((calm.ci_low, calm.ci_high))


def test_a_stall_of_any_size_moves_the_estimate_by_little() -> None:
    base, candidate = noisy(30, 1.2, sigma=0.02)
    stalled = candidate.copy()
    stalled[[3, 17]] *= 1000
    calm = estimate(base, candidate, alpha=0.05, seed=0)
    hit = estimate(base, stalled, alpha=0.05, seed=0)
    assert hit.ratio == pytest.approx(calm.ratio, rel=0.01)
    assert hit.ci_high - hit.ci_low < 2 * (calm.ci_high - calm.ci_low)


def test_the_middle_is_the_mean_of_the_middle_three_fifths() -> None:
    assert trimmed_mean(np.array([100.0, 1.0, 2.0, 3.0, -50.0])) == 2.0
    assert trimmed_mean(np.array([1.0, 2.0, 9.0])) == 4.0


def test_rounding_is_neither_a_difference_nor_a_width() -> None:
    base = np.array([0.1, 0.2, 0.3, 0.7, 1.1, 1.3, 1.7])
    found = estimate(base, base * 3 / 3, alpha=0.05, seed=0)
    assert (found.ratio, found.ci_low, found.ci_high, found.p_value) == (1.0, 1.0, 1.0, 1.0)


def test_a_second_copy_of_the_baseline_narrows_the_interval() -> None:
    rng = np.random.default_rng(4)
    base, candidate = np.exp(0.1 * rng.normal(size=(200, 2))), np.exp(0.1 * rng.normal(size=200))
    one = paired_ratio(base[:, 0], candidate, seed=0).within_error
    two = paired_ratio(base, candidate, seed=0).within_error
    # sqrt(1.5 / 2) for independent variants.
    assert two / one == pytest.approx(0.866, abs=0.06)


def test_copies_with_stalls_do_not_bias_the_ratio() -> None:
    # Averaging the copies before the middle is taken gives 1.017 here.
    rng = np.random.default_rng(0)
    series = 0.1 * rng.normal(size=(5000, 3))
    stalls = rng.random(series.shape) < 0.1
    series[stalls] += np.log(rng.uniform(1.3, 4.0, size=int(stalls.sum())))
    samples = np.exp(series)
    ratios = [
        paired_ratio(part[:, :2], part[:, 2], seed=0).log_ratio for part in np.split(samples, 25)
    ]
    assert abs(np.mean(ratios)) < 0.007


@settings(max_examples=60, deadline=None)
@given(variants, st.sampled_from([1e-9, 0.001, 0.0125, 0.05, 0.3]), st.integers(0, 3))
def test_interval_excludes_one_exactly_if_p_is_below_the_level(
    pairs: list[tuple[float, float]], alpha: float, sets: int
) -> None:
    base, candidate = zip(*pairs, strict=True)
    process = [at * sets // len(pairs) for at in range(len(pairs))] if sets else None
    found = estimate(base, candidate, alpha=alpha, seed=1, process=process)
    assert 0.0 <= found.p_value <= 1.0
    if not math.isclose(found.p_value, alpha, rel_tol=1e-6):
        assert (found.ci_low > 1.0 or found.ci_high < 1.0) == (found.p_value < alpha)


@settings(max_examples=60, deadline=None)
@given(variants)
def test_estimate_lies_in_its_interval_and_inverts_when_variants_are_swapped(
    pairs: list[tuple[float, float]],
) -> None:
    base, candidate = zip(*pairs, strict=True)
    there = estimate(base, candidate, alpha=0.05, seed=2)
    back = estimate(candidate, base, alpha=0.05, seed=2)
    assert 0 < there.ci_low <= there.ratio <= there.ci_high < math.inf
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.ci_low * back.ci_high == pytest.approx(1.0)
    assert there.p_value == pytest.approx(back.p_value, abs=1e-9)


def test_stricter_levels_widen_the_interval() -> None:
    ratio = paired_ratio(*noisy(30, 1.05), seed=0)
    reaches = [ratio.estimate(alpha) for alpha in (0.05, 0.01, 1e-6)]
    assert reaches[0].ci_low > reaches[1].ci_low > reaches[2].ci_low
    assert reaches[0].p_value == reaches[2].p_value


def test_plain_differences_have_p_values_that_survive_any_correction() -> None:
    assert estimate(*noisy(60, 1.5), alpha=0.05, seed=0).p_value < 1e-12


def test_the_same_seed_gives_the_same_interval() -> None:
    data = noisy(40, 1.0)
    first, again = (estimate(*data, alpha=0.05, seed=7) for _ in range(2))
    other = estimate(*data, alpha=0.05, seed=8)
    assert first == again
    assert first != other
    assert other.ci_low == pytest.approx(first.ci_low, abs=0.01)


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
def test_few_rounds_give_an_interval_all_the_same(rounds: int) -> None:
    found = estimate(*noisy(rounds, 1.0), alpha=0.05, seed=0)
    assert 0 < found.ci_low < found.ratio < found.ci_high < math.inf
    if rounds == 1:
        assert found.ci_high > 1e100
        assert found.p_value == 1.0


def test_huge_ratios_stay_finite() -> None:
    found = estimate([1e300] * 7, [1e-300, 1e-200] * 3 + [1e-300], alpha=0.05, seed=0)
    assert 1e250 < found.ratio <= found.ci_high < math.inf
    assert found.ci_low > 0


def test_ratios_equal_but_for_a_few_still_have_a_width() -> None:
    candidate = np.ones(40)
    candidate[:6] = 1.1
    found = estimate(np.ones(40), candidate, alpha=0.05, seed=0)
    assert found.ci_low < 1.0 < found.ci_high


@pytest.mark.parametrize(
    ("base", "candidate", "reason"),
    [
        ([], [], "one time of each variant"),
        ([1.0, 2.0], [1.0], "one time of each variant"),
        ([[[1.0]]], [1.0], "one time of each variant"),
        ([1.0, 0.0], [1.0, 1.0], "above zero"),
        ([1.0, 1.0], [1.0, -1.0], "above zero"),
        ([1.0, math.nan], [1.0, 1.0], "finite"),
        ([1.0, 1.0], [math.inf, 1.0], "finite"),
    ],
)
def test_invalid_times_are_refused(base: list[float], candidate: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        estimate(base, candidate, alpha=0.05, seed=0)


def test_processes_must_be_as_many_as_rounds() -> None:
    with pytest.raises(ValueError, match="process numbers"):
        estimate([1.0, 2.0], [1.0, 2.0], alpha=0.05, seed=0, process=[0])


@pytest.mark.parametrize("rounds", [6, 8, 12, 30])
def test_interval_of_the_ratio_keeps_its_level(rounds: int) -> None:
    inside = 0
    for seed in range(400):
        found = estimate(*noisy(rounds, 1.3, seed=seed), alpha=0.05, seed=seed)
        inside += found.ci_low <= 1.3 <= found.ci_high
    assert 0.93 <= inside / 400 <= 0.99


def test_correlated_ratios_are_drawn_in_blocks() -> None:
    rng = np.random.default_rng(4)
    series = np.exp(0.1 * autoregressive(rng, 120, 0.6))
    found = paired_ratio(series, np.ones(120), seed=0)
    shuffled = paired_ratio(rng.permuted(series), np.ones(120), seed=0)
    assert found.block > 2
    assert shuffled.block == 1
    assert "moving blocks" in found.estimate(0.05).method
    assert "blocks" not in shuffled.estimate(0.05).method
    # sqrt(1.6 / 0.4) = 2 for an endless series.
    assert found.within_error / shuffled.within_error > 1.4


def test_correlated_ratios_are_rarely_called_different() -> None:
    called = 0
    for seed in range(300):
        series = np.exp(0.1 * autoregressive(np.random.default_rng(seed), 60, 0.45))
        called += estimate(series, np.ones(60), alpha=0.05, seed=seed).p_value < 0.05
    # 24 % without blocks, 10 % with blocks alone.
    assert called / 300 <= 0.10


def test_sets_of_processes_that_disagree_widen_the_interval() -> None:
    base, candidate = noisy(60, 1.0, sigma=0.02)
    process = np.repeat(np.arange(5), 12)
    shifted = candidate * np.exp(np.array([0.0, 0.05, -0.05, 0.08, -0.03]))[process]
    found = estimate(base, shifted, alpha=0.05, seed=0, process=process)
    assert found.processes == 5
    assert found.between_low is not None
    assert found.between_high is not None
    assert found.between_high - found.between_low > 2 * (found.within_high - found.within_low)
    assert (found.ci_low, found.ci_high) == (found.between_low, found.between_high)
    assert "5 sets of processes" in found.method


def test_sets_of_processes_that_agree_leave_the_wider_interval() -> None:
    base, candidate = noisy(60, 1.0)
    found = estimate(base, candidate, alpha=0.05, seed=0, process=np.repeat(np.arange(6), 10))
    assert found.between_low is not None
    assert found.between_high is not None
    assert found.ci_low == min(found.within_low, found.between_low)
    assert found.ci_high == max(found.within_high, found.between_high)


def test_two_sets_of_processes_give_no_interval_between_them() -> None:
    found = estimate(*noisy(20, 1.0), alpha=0.05, seed=0, process=[0] * 10 + [1] * 10)
    assert (found.between_low, found.processes) == (None, 2)


def test_many_rounds_narrow_the_interval_as_they_should() -> None:
    found = estimate(*noisy(3000, 1.02), alpha=0.05, seed=0)
    # Two variants of 0.1 each; trimming normal noise costs 6 % of width.
    width = 2 * 1.96 * 0.1 * math.sqrt(2 / 3000) * 1.06
    assert math.log(found.ci_high / found.ci_low) == pytest.approx(width, rel=0.1)

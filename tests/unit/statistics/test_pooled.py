"""Few pairs, judged by a spread learned from all of them."""

import math
import random

import pytest

from ridgeline.statistics.pooled import LOOKS, MAX_PAIRS, MIN_SPREAD, Pool

MATTERS = math.log(1.02)


def called(rng: random.Random, sigma: float, effect: float) -> str:
    """One comparison, after four runs of the baseline."""
    pair = sigma * math.sqrt(2)
    pool = Pool()
    pool.add_runs([rng.gauss(0, sigma) for _ in range(4)])
    differences: list[float] = []
    for number in range(1, MAX_PAIRS + 1):
        differences.append(effect + rng.gauss(0, pair))
        if number in LOOKS:
            mean, low, high = pool.interval(differences, LOOKS[number])
            if low > 0 and mean >= MATTERS:
                return "faster"
            if high < 0 and mean <= -MATTERS:
                return "slower"
    return ""


def rate(sigma: float, effect: float, verdict: str, runs: int = 1200) -> float:
    rng = random.Random(3)
    return sum(called(rng, sigma, effect) == verdict for _ in range(runs)) / runs


@pytest.mark.parametrize("sigma", [0.01, 0.03, 0.06])
def test_identical_programs_are_seldom_called_different(sigma: float) -> None:
    assert rate(sigma, 0.0, "faster") + rate(sigma, 0.0, "slower") < 0.06


def test_ten_per_cent_are_found_where_processes_differ_by_three() -> None:
    assert rate(0.03, math.log(1.1), "faster") > 0.95
    assert rate(0.03, -math.log(1.1), "slower") > 0.95


def test_without_a_spread_the_interval_is_infinite() -> None:
    mean, low, high = Pool().interval([0.5], 0.05)
    assert mean == 0.5
    assert (low, high) == (-math.inf, math.inf)


def test_pairs_that_happen_to_agree_keep_the_minimum_spread() -> None:
    pool = Pool()
    pool.add_runs([0.0, 0.0, 0.0])
    assert pool.spread == MIN_SPREAD


def test_two_programs_add_their_spread_but_not_their_distance() -> None:
    pool = Pool()
    pool.add_runs([0.0, 0.01, -0.01])
    before = pool.spread
    pool.add_comparison([0.7, 0.7])
    assert pool.spread < before


def test_after_two_runs_a_factor_of_two_is_known_by_one_pair() -> None:
    pool = Pool()
    pool.add_assumption(0.002)
    pool.add_runs([0.0, 0.01])
    _, low, _ = pool.interval([math.log(2)], LOOKS[1])
    assert low > 0


@pytest.mark.parametrize("sigma", [0.03, 0.06, 0.12])
def test_varying_times_are_seldom_called_faster_after_two_runs(sigma: float) -> None:
    rng, called = random.Random(5), 0
    for _ in range(600):
        pool = Pool()
        pool.add_assumption(sigma / 2)
        pool.add_runs([rng.gauss(0, sigma) for _ in range(2)])
        differences: list[float] = []
        for number in range(1, MAX_PAIRS + 1):
            differences.append(rng.gauss(0, sigma * math.sqrt(2)))
            mean, low, _ = pool.interval(differences, LOOKS.get(number, 0.001))
            if low > 0 and mean >= MATTERS:
                called += 1
                break
    assert called / 600 < 0.06


def test_a_run_added_later_counts_like_the_first_ones() -> None:
    logs = [0.0, 0.02, 0.5, -0.1]
    whole, grown = Pool(), Pool()
    whole.add_runs(logs)
    grown.add_runs(logs[:2])
    grown.add_run(logs[:2], logs[2])
    grown.add_run(logs[:3], logs[3])
    assert grown.spread == pytest.approx(whole.spread)
    assert grown.interval([0.3], 0.05) == pytest.approx(whole.interval([0.3], 0.05))

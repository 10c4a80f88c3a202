"""Drawn timings are what they say, and Welch's test is the textbook's."""

import numpy as np
import pytest

from ridgeline.statistics.significance import welch_p_value
from ridgeline.statistics.simulation import sequential_samples, simulated_rounds


def in_time_order(samples: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.take_along_axis(samples, np.argsort(positions, axis=1), axis=1).ravel()


def test_rounds_are_one_series_in_the_order_of_time() -> None:
    table = simulated_rounds(3000, 3, drift=0.0, seed=1)
    logs = np.log(in_time_order(table.samples, table.positions))
    logs -= logs.mean()
    assert logs.std() == pytest.approx(0.10, abs=0.005)
    assert np.corrcoef(logs[1:], logs[:-1])[0, 1] == pytest.approx(0.45, abs=0.03)
    assert np.corrcoef(logs[2:], logs[:-2])[0, 1] == pytest.approx(0.2025, abs=0.04)


def test_every_variant_runs_once_a_round_in_every_place() -> None:
    positions = simulated_rounds(600, 4, seed=2).positions
    assert (np.sort(positions, axis=1) == np.arange(4)).all()
    shares = [(positions[:, 0] == place).mean() for place in range(4)]
    assert shares == pytest.approx([0.25] * 4, abs=0.06)


def test_effects_lengthen_the_times_of_their_variants() -> None:
    plain = simulated_rounds(20, 3, seed=3)
    slowed = simulated_rounds(20, 3, effects=[1.0, 1.0, 1.5], seed=3)
    assert slowed.samples[:, 2] == pytest.approx(1.5 * plain.samples[:, 2])
    assert (slowed.samples[:, :2] == plain.samples[:, :2]).all()


def test_stalls_hit_their_share_of_the_samples() -> None:
    calm = simulated_rounds(1000, 3, seed=4)
    stalled = simulated_rounds(1000, 3, stalls=0.1, seed=4)
    longer = stalled.samples / calm.samples
    hit = longer > 1.01
    assert hit.mean() == pytest.approx(0.1, abs=0.02)
    assert 1.3 <= longer[hit].min() <= longer[hit].max() <= 4.0


def test_drift_moves_the_level_over_the_run() -> None:
    moves = []
    for seed in range(60):
        first, last = sequential_samples(200, drift=0.5, sigma=0.01, seed=seed)
        moves.append(abs(np.log(last[-20:].mean() / first[:20].mean())))
    assert np.median(moves) == pytest.approx(0.5, abs=0.12)


def test_there_must_be_one_effect_per_variant() -> None:
    with pytest.raises(ValueError, match="as many effects"):
        simulated_rounds(5, 3, effects=[1.0, 1.1], seed=0)


def test_welch_gives_the_worked_example() -> None:
    # Equal sizes and variances near each other; t = -2.46, 25.0 degrees of freedom, p = 0.021.
    first = "27.5 21.0 19.0 23.6 17.0 17.9 16.9 20.1 21.9 22.6 23.1 19.6 19.0 21.7 21.4"
    second = "27.1 22.0 20.8 23.4 23.4 23.5 25.8 22.0 24.8 20.2 21.9 22.1 22.9 20.5 24.4"
    found = welch_p_value([*map(float, first.split())], [*map(float, second.split())])
    assert found == pytest.approx(0.021, abs=0.0005)


def test_welch_keeps_its_level_on_independent_samples() -> None:
    rng = np.random.default_rng(0)
    called = sum(
        welch_p_value(rng.normal(size=20), 3 * rng.normal(size=8)) < 0.05 for _ in range(2000)
    )
    assert called / 2000 == pytest.approx(0.05, abs=0.015)


def test_welch_on_samples_without_spread() -> None:
    assert welch_p_value([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert welch_p_value([1.0, 1.0], [2.0, 2.0]) == 0.0


def test_welch_refuses_what_it_cannot_judge() -> None:
    with pytest.raises(ValueError, match="two samples"):
        welch_p_value([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="finite"):
        welch_p_value([1.0, np.nan], [1.0, 2.0])

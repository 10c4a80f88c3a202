"""Places and predecessors that change a variant's time, among orders dealt at random."""

import numpy as np
import pytest

from ridgeline.statistics.analysis import RoundTable, _predecessors, order_effect
from ridgeline.statistics.simulation import simulated_rounds

NAMES = ("slow", "again", "fast")


def after(table: RoundTable, variant: int, other: int, factor: float) -> np.ndarray:
    """The samples, with `variant` taking `factor` times as long where it ran just after `other`."""
    samples = table.samples.copy()
    samples[:, variant] *= np.where(
        _predecessors(table.positions, None)[:, variant] == other, factor, 1.0
    )
    return samples


def test_orders_without_effect_are_rarely_significant() -> None:
    found = 0
    for seed in range(300):
        table = simulated_rounds(60, 3, seed=seed)
        found += order_effect(table.samples, table.positions, seed=seed).significant
    assert found / 300 <= 0.07


def test_a_carry_over_of_ten_percent_is_found_and_named() -> None:
    right = 0
    for seed in range(40):
        table = simulated_rounds(60, 3, sigma=0.05, seed=seed)
        samples = after(table, 2, 0, 1.10)
        found = order_effect(samples, table.positions, names=NAMES, seed=seed)
        right += found.significant and found.where == "fast after slow" and found.share > 0.05
    assert right / 40 >= 0.9


def test_a_variant_slow_when_first_is_named() -> None:
    table = simulated_rounds(60, 3, sigma=0.03, seed=2)
    samples = table.samples.copy()
    samples[:, 0] *= np.where(table.positions[:, 0] == 0, 1.15, 1.0)
    found = order_effect(samples, table.positions, names=NAMES)
    assert found.significant
    assert found.where == "slow when first"
    assert found.share == pytest.approx(0.15, abs=0.04)


def test_an_effect_that_speeds_up_has_a_negative_share() -> None:
    table = simulated_rounds(60, 3, sigma=0.03, seed=5)
    samples = after(table, 2, 1, 0.9)
    found = order_effect(samples, table.positions, names=NAMES)
    assert (found.significant, found.where) == (True, "fast after again")
    assert found.share == pytest.approx(-0.1, abs=0.03)


def test_the_predecessor_of_a_first_variant_is_the_last_of_the_round_before() -> None:
    positions = np.array([[0, 1, 2], [1, 0, 2], [0, 2, 1]])
    assert _predecessors(positions, None).tolist() == [[-1, 0, 1], [1, 2, 0], [2, 2, 0]]


def test_the_first_variant_of_new_processes_has_no_predecessor() -> None:
    positions = np.array([[0, 1], [0, 1], [0, 1]])
    assert _predecessors(positions, np.array([0, 0, 1])).tolist() == [[-1, 0], [1, 0], [-1, 0]]


def test_one_order_for_all_rounds_cannot_be_judged() -> None:
    samples = np.exp(0.1 * np.random.default_rng(0).normal(size=(40, 3)))
    found = order_effect(samples, np.tile([0, 1, 2], (40, 1)))
    # The first round had nobody before it; that single round is no contrast.
    assert (found.share, found.significant, found.where) == (0.0, False, "")


def test_equal_samples_have_no_order_effect() -> None:
    positions = simulated_rounds(40, 3, seed=1).positions
    found = order_effect(np.full((40, 3), 5.0), positions)
    assert (found.share, found.significant) == (0.0, False)


@pytest.mark.parametrize("rounds", [1, 4])
def test_few_rounds_have_no_order_effect(rounds: int) -> None:
    table = simulated_rounds(rounds, 3, seed=1)
    assert not order_effect(table.samples, table.positions).significant


def test_the_same_seed_gives_the_same_answer() -> None:
    table = simulated_rounds(30, 4, seed=3)
    first, again = (order_effect(table.samples, table.positions, seed=1) for _ in range(2))
    assert first == again

"""One look at the rounds of a comparison, from samples to verdicts."""

import math

import numpy as np
import pytest

from ridgeline.records.comparison import VerdictCode
from ridgeline.statistics.analysis import Analysis, RoundTable, analyse
from ridgeline.statistics.simulation import simulated_rounds


def look(table: RoundTable, alpha: float = 0.05) -> Analysis:
    return analyse(table, alpha=alpha, threshold=0.02, seed=1)


def with_samples(table: RoundTable, samples: np.ndarray) -> RoundTable:
    return RoundTable(samples=samples, positions=table.positions)


def test_slower_faster_and_equal_candidates_get_their_verdicts() -> None:
    table = simulated_rounds(60, 5, effects=[1, 1, 1.3, 0.7, 1], sigma=0.02, seed=1)
    found = look(table)
    assert found.verdicts == ("SLOWER", "FASTER", "SAME")
    assert [one.ratio for one in found.estimates] == pytest.approx([1 / 1.3, 1 / 0.7, 1], rel=0.02)
    assert not found.control.differs
    assert len(found.reasons) == 3


def test_too_much_noise_is_undecided_with_the_reason() -> None:
    found = look(simulated_rounds(15, 3, effects=[1, 1, 1.01], sigma=0.1, seed=3))
    assert found.verdicts == ("UNDECIDED",)
    assert "rounds_factor" in found.reasons[0].facts


def test_there_is_no_verdict_if_identical_code_differs() -> None:
    table = simulated_rounds(60, 3, effects=[1, 1.1, 1.5], sigma=0.03, seed=4)
    found = look(table)
    assert found.control.differs
    assert found.verdicts == ("UNDECIDED",)
    assert found.reasons[0].code == VerdictCode.CONTROL_DIFFERS


def test_the_floor_is_how_far_apart_identical_code_looked() -> None:
    found = look(simulated_rounds(30, 3, seed=5))
    control = found.control.estimate
    assert found.control.floor == pytest.approx(math.expm1(abs(math.log(control.ratio))))
    assert control.ci_low < control.ratio < control.ci_high


def test_several_candidates_share_the_level() -> None:
    table = simulated_rounds(60, 6, effects=[1, 1, 1.5, 1, 1, 1], sigma=0.05, seed=6)
    found = look(table)
    assert found.estimates[0].level == pytest.approx(1 - 0.05 / 4)
    for estimate in found.estimates:
        apart = estimate.ci_low > 1 or estimate.ci_high < 1
        assert apart == (estimate.p_value < 1 - estimate.level)
    assert found.verdicts[0] == "SLOWER"


def test_a_comparison_without_candidates_has_its_control() -> None:
    found = look(simulated_rounds(20, 2, seed=7))
    assert (found.estimates, found.verdicts, found.reasons) == ((), (), ())
    assert found.control.estimate.rounds == 20


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_too_few_rounds_are_undecided_however_large_the_difference(rounds: int) -> None:
    found = look(simulated_rounds(rounds, 3, effects=[1, 1, 9], sigma=0.001, seed=8))
    assert found.verdicts == ("UNDECIDED",)
    assert found.reasons[0].code == VerdictCode.TOO_FEW_ROUNDS


def test_samples_without_any_spread_are_judged() -> None:
    table = simulated_rounds(10, 4, seed=9)
    found = look(with_samples(table, np.tile([20.0, 20.0, 20.0, 10.0], (10, 1))))
    assert found.verdicts == ("SAME", "FASTER")
    assert (found.control.floor, found.control.differs) == (0.0, False)
    assert not found.drift.significant
    assert not found.order.significant


def test_the_unit_of_time_does_not_matter() -> None:
    table = simulated_rounds(30, 3, effects=[1, 1, 1.05], seed=10)
    there, back = look(table), look(with_samples(table, table.samples * 1e-9))
    assert back.verdicts == there.verdicts
    assert back.estimates[0].ci_low == pytest.approx(there.estimates[0].ci_low)


def test_processes_that_disagree_prevent_a_verdict() -> None:
    table = simulated_rounds(60, 3, effects=[1, 1, 1.04], sigma=0.01, seed=11)
    process = np.arange(60) % 4
    apart = np.exp(np.array([0.06, -0.05, 0.04, -0.06]))[process]
    samples = table.samples * np.stack([np.ones(60), np.ones(60), apart], axis=1)
    alone = RoundTable(samples=samples, positions=table.positions)
    found = look(RoundTable(samples=samples, positions=table.positions, process=process))
    assert look(alone).verdicts == ("SLOWER",)
    assert found.verdicts == ("UNDECIDED",)
    assert found.estimates[0].processes == 4


def test_drift_and_order_are_reported_beside_the_verdict() -> None:
    table = simulated_rounds(60, 3, sigma=0.02, drift=0.0, seed=12)
    samples = table.samples * np.linspace(1.0, 1.5, 60)[:, None]
    samples[:, 2] *= np.where(table.positions[:, 2] == 0, 1.2, 1.0)
    named = RoundTable(
        samples=samples, positions=table.positions, names=("slow.py", "slow.py again", "fast.py")
    )
    found = look(named)
    assert found.drift.significant
    assert found.drift.share == pytest.approx(0.4, abs=0.05)
    assert found.order.significant
    assert found.order.where == "fast.py when first"


def test_the_same_rounds_and_seed_give_the_same_analysis() -> None:
    table = simulated_rounds(30, 4, seed=13)
    assert look(table) == look(table)


def test_invalid_tables_are_refused() -> None:
    table = simulated_rounds(10, 3, seed=14)
    bad = table.samples.copy()
    bad[3, 2] = np.nan
    for broken, reason in (
        (with_samples(table, bad), "finite"),
        (with_samples(table, table.samples * 0), "above zero"),
        (with_samples(table, table.samples[:, :2]), "as many places"),
        (RoundTable(samples=table.samples[:, :1], positions=table.positions[:, :1]), "a control"),
        (RoundTable(samples=table.samples[:0], positions=table.positions[:0]), "at least"),
        (RoundTable(samples=table.samples, positions=table.positions * 0), "in some order"),
        (RoundTable(table.samples, table.positions, None, ("a",)), "as many names"),
    ):
        with pytest.raises(ValueError, match=reason):
            look(broken)

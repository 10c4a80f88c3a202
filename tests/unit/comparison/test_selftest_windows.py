"""Windows whose truth is known: how they are judged and counted. No clock, no torch."""

import numpy as np
import pytest

from ridgeline.comparison.selftest import (
    EFFECTS,
    Judged,
    Window,
    count,
    judge,
    one_after_the_other,
    one_candidate,
    simulated,
    tally,
)
from ridgeline.records.facts import Verdict
from ridgeline.statistics.analysis import RoundTable
from ridgeline.statistics.simulation import sequential_samples, simulated_rounds


def _window(effect: float, seed: int = 3) -> Window:
    slower = 1 + effect
    rounds = simulated_rounds(60, effects=(1, 1, slower), sigma=0.02, seed=seed)
    pair = sequential_samples(60, effect=slower, sigma=0.02, drift=0.0, seed=seed)
    return Window(effect, rounds, *pair)


def test_a_large_slowdown_is_found_by_both_procedures() -> None:
    found = judge(_window(0.3))
    assert (found.rounds, found.sequence) == ("SLOWER", "SLOWER")
    assert np.expm1(-found.log_ratio) == pytest.approx(0.3, abs=0.05)


def test_identical_code_in_quiet_rounds_is_not_called_different() -> None:
    assert judge(_window(0.0)).rounds in ("SAME", "UNDECIDED")


def test_drift_alone_makes_the_t_test_call_identical_code_different() -> None:
    first, second = sequential_samples(60, sigma=0.02, drift=0.3, seed=1)
    assert one_after_the_other(first, second) in ("FASTER", "SLOWER")


def test_the_t_test_says_which_way() -> None:
    rng = np.random.default_rng(0)
    short, long = rng.normal(10, 1, 60), rng.normal(20, 1, 60)
    assert one_after_the_other(short, long) == "SLOWER"
    assert one_after_the_other(long, short) == "FASTER"
    assert one_after_the_other(short, rng.permutation(short)) == "UNDECIDED"


def test_of_identical_code_either_direction_is_a_false_alarm() -> None:
    verdicts: list[Verdict] = ["FASTER", "SLOWER", "SAME", "UNDECIDED", "SAME"]
    found = tally("ridgeline", 0.0, verdicts)
    assert (found.called.count, found.called.of) == (2, 5)
    assert (found.faster, found.slower, found.same, found.undecided) == (1, 1, 2, 1)


def test_of_slower_code_only_slower_is_a_find() -> None:
    assert tally("ridgeline", 0.05, ["FASTER", "SLOWER", "SAME"]).called.count == 1


def test_windows_are_counted_by_effect_in_order_of_size() -> None:
    judged = [
        Judged(0.1, "SLOWER", "FASTER", -np.log(1.1), False),
        Judged(0.0, "UNDECIDED", "SLOWER", 0.0, True),
        Judged(0.0, "SAME", "UNDECIDED", 0.0, False),
    ]
    bench = count(judged, source="measured", noise="this machine", rounds=30)
    assert [t.effect for t in bench.tallies] == [0.0, 0.0, 0.1, 0.1]
    assert bench.identical.windows == 2
    assert bench.tally("sequential Welch", 0.0).called.count == 1
    assert bench.tally("ridgeline", 0.1).seen == pytest.approx(0.1)
    assert bench.tally("sequential Welch", 0.1).seen is None
    assert bench.controls_differ == 1


def test_one_candidate_keeps_the_order_it_ran_in_among_the_three() -> None:
    samples = np.arange(12, dtype=np.float64).reshape(2, 6) + 1
    positions = np.array([[5, 0, 1, 2, 3, 4], [0, 4, 1, 2, 5, 3]])
    found = one_candidate(RoundTable(samples=samples, positions=positions), variant=4)
    assert found.samples.tolist() == [[1, 2, 5], [7, 8, 11]]
    assert found.positions.tolist() == [[2, 0, 1], [0, 1, 2]]


def test_the_simulation_is_the_same_each_time_and_runs_every_effect() -> None:
    first, again = (simulated(7, lambda now: None, runs=(3, 1, 1, 2)) for _ in range(2))
    assert first == again
    windows = [first.tally("ridgeline", effect).windows for effect in EFFECTS]
    assert windows == [3, 1, 1, 2]
    assert first.source == "simulated"


def test_another_seed_draws_other_noise() -> None:
    one, other = (simulated(seed, lambda now: None, runs=(1, 1, 1, 1)) for seed in (1, 2))
    assert one.identical.seen != other.identical.seen

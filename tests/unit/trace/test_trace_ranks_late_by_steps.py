"""Which rank is late, from simulated steps: noise of fixed seeds, one fault at a time."""

import numpy as np
import pytest

from ridgeline.trace.ranks.own_time import OwnSteps, late_by_steps

MS = 1e6
STEP_MS = 50.0


def steps(
    rank: int, *, seed: int = 0, count: int = 40, noise_ms: float = 1.0, **phases_ms: float
) -> OwnSteps:
    """Return a rank that works alone for 5 ms in each step, and for `phases_ms` beside that."""
    draw = np.random.default_rng([seed, rank])
    own = {"forward": 5 + np.abs(draw.normal(0, noise_ms, count)), "other": np.full(count, 0.5)}
    for phase, ms in phases_ms.items():
        own[phase] = own.get(phase, np.zeros(count)) + ms
    ns = {phase: values * MS for phase, values in own.items()}
    return OwnSteps(rank, np.arange(count), np.full(count, STEP_MS * MS), ns)


def every_tenth(rank: int, ms: float) -> OwnSteps:
    made = steps(rank)
    slow = np.where(made.index % 10 == 9, ms * MS, 0.0)
    return OwnSteps(rank, made.index, made.length_ns, {**made.own_ns, "evaluation": slow})


@pytest.mark.parametrize("phase", ["input", "forward", "other"])
def test_a_rank_that_works_longer_in_every_step_is_late(phase: str) -> None:
    found = late_by_steps([steps(0), steps(1, **{phase: 20}), steps(2)])
    assert found is not None
    assert (found.rank, found.phase) == (1, phase)
    assert found.late_ns == pytest.approx(20 * MS, rel=0.1)
    assert found.share == pytest.approx(0.4, abs=0.04)
    assert found.late_steps == found.steps == 40


def test_lateness_is_counted_from_the_slowest_other_rank() -> None:
    found = late_by_steps([steps(0, other=20), steps(1, other=30)])
    assert found is not None
    assert found.rank == 1
    assert found.late_ns == pytest.approx(10 * MS, rel=0.1)


def test_a_rank_that_is_slow_in_every_tenth_step_is_late_by_the_mean() -> None:
    found = late_by_steps([steps(0), every_tenth(1, 100)])
    assert found is not None
    assert (found.rank, found.phase) == (1, "evaluation")
    assert found.phase_ns == pytest.approx(10 * MS)


def test_one_stall_makes_no_rank_late() -> None:
    stalled = steps(1)
    stalled.own_ns["forward"][17] += 500 * MS
    assert late_by_steps([steps(0), stalled]) is None


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [2, 4])
def test_no_rank_is_late_where_ranks_differ_by_noise_alone(seed: int, count: int) -> None:
    assert late_by_steps([steps(r, seed=seed, noise_ms=10) for r in range(count)]) is None


def test_less_than_three_percent_of_the_step_is_no_lateness() -> None:
    assert late_by_steps([steps(0, noise_ms=0.1), steps(1, noise_ms=0.1, other=1)]) is None


def test_only_steps_that_all_ranks_have_are_compared() -> None:
    late = steps(1, input=20)
    found = late_by_steps([steps(0), late.at(np.arange(10, 30))])
    assert found is not None
    assert found.steps == 20
    assert late_by_steps([steps(0).at(np.arange(5)), late.at(np.arange(10, 30))]) is None
    assert late_by_steps([late]) is None


def test_the_bound_is_what_even_the_slowest_other_rank_waits() -> None:
    found = late_by_steps([steps(0), steps(1, input=20)])
    assert found is not None
    assert found.slowest_other_ns == pytest.approx(6.3 * MS, rel=0.1)
    assert found.share < found.waiting_share < 0.9

"""Looks set in advance: where they lie, and that all of them together err as often as asked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.statistics.significance import critical_t, plan_looks

NORMAL = 1e9  # degrees of freedom


def ever_outside(rounds: tuple[int, ...], alphas: tuple[float, ...], runs: int = 200_000) -> float:
    """How often a Brownian motion is outside at one look at least: by drawing, not integrating."""
    rng = np.random.default_rng(5)
    place, outside, last = np.zeros(runs), np.zeros(runs, bool), 0
    for look, alpha in zip(rounds, alphas, strict=True):
        place += rng.normal(size=runs) * np.sqrt(look - last)
        outside |= np.abs(place) > critical_t(alpha, NORMAL) * np.sqrt(look)
        last = look
    return float(outside.mean())


@pytest.mark.parametrize(
    ("most", "rounds"),
    [
        (1, (1,)),
        (29, (29,)),
        (30, (15, 30)),
        (40, (15, 40)),
        (60, (15, 30, 60)),
        (70, (15, 30, 70)),
        (400, (15, 30, 60, 120, 240, 400)),
    ],
)
def test_looks_double_and_end_with_the_last_round(most: int, rounds: tuple[int, ...]) -> None:
    assert plan_looks(most).rounds == rounds


@pytest.mark.parametrize("most", [30, 60, 400])
def test_all_looks_together_keep_the_level(most: int) -> None:
    looks = plan_looks(most)
    # 200,000 draws: the standard error is 0.0005.
    assert ever_outside(looks.rounds, looks.alphas) == pytest.approx(0.05, abs=0.002)


def test_looks_at_the_full_level_err_twice_as_often() -> None:
    assert ever_outside((15, 30, 60), (0.05,) * 3) > 0.10


def test_a_single_look_has_the_whole_level() -> None:
    assert plan_looks(20, alpha=0.01).alphas == pytest.approx((0.01,))


def test_the_last_of_three_looks_keeps_most_of_the_level() -> None:
    assert plan_looks(60).alphas[-1] == pytest.approx(0.039, abs=0.0005)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 500), st.integers(1, 40), st.sampled_from([0.01, 0.05, 0.1]))
def test_any_plan_is_in_order_and_within_the_level(most: int, first: int, alpha: float) -> None:
    looks = plan_looks(most, alpha=alpha, first=first)
    assert list(looks.rounds) == sorted(set(looks.rounds))
    assert looks.rounds[-1] == most
    assert len(looks.rounds) == len(looks.alphas)
    assert all(0 < level <= alpha * 1.000001 for level in looks.alphas)
    assert (len(looks.rounds) == 1) == (most < 2 * first)


def test_a_planned_end_has_its_planned_level() -> None:
    looks = plan_looks(60)
    assert [looks.level_at(n) for n in looks.rounds] == list(looks.alphas)
    assert looks.level_at(75) == looks.alphas[-1]


@pytest.mark.parametrize("end", [5, 16, 29, 45, 59])
def test_an_unplanned_end_spends_no_more_than_was_due_by_then(end: int) -> None:
    looks = plan_looks(60)
    before = tuple(look for look in looks.rounds if look < end)
    levels = (*looks.alphas[: len(before)], looks.level_at(end))
    due = 0.05 * (end / 60) ** 1.5
    assert ever_outside((*before, end), levels) == pytest.approx(due, abs=0.002)


@pytest.mark.parametrize("end", [5, 15, 16, 29, 30, 45, 59])
def test_when_the_time_is_over_all_of_the_level_is_spent_and_no_more(end: int) -> None:
    looks = plan_looks(60)
    before = tuple(look for look in looks.rounds if look < end)
    levels = (*looks.alphas[: len(before)], looks.level_at(end, time_over=True))
    assert ever_outside((*before, end), levels) == pytest.approx(0.05, abs=0.002)


def test_an_end_just_after_a_look_has_little_left_to_spend() -> None:
    looks = plan_looks(60)
    assert looks.level_at(31) < looks.level_at(45) < looks.level_at(59) < looks.alphas[-1]


def test_senseless_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="one round"):
        plan_looks(0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        plan_looks(60, alpha=1.0)
    with pytest.raises(ValueError, match="no rounds"):
        plan_looks(60).level_at(0)

"""Holm's levels: an interval at them decides as Holm's procedure does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.statistics.significance import holm_alphas

probabilities = st.floats(0.0, 1.0)


def holm_rejects(p_values: list[float], alpha: float) -> list[bool]:
    """The procedure by its adjusted p-values: another road to the same decision."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    rejected, highest = [False] * len(p_values), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, p_values[at] * (len(p_values) - rank))
        rejected[at] = highest < alpha
    return rejected


@given(st.lists(st.floats(0.0, 0.1) | probabilities, max_size=8))
def test_a_p_value_below_its_level_is_rejected_by_holm(p_values: list[float]) -> None:
    # A hair's breadth beside the levels, division and multiplication round differently.
    p_values = [round(p, 6) + 1e-9 for p in p_values if p < 0.999]
    levels = holm_alphas(p_values, 0.05)
    below = [p < level for p, level in zip(p_values, levels, strict=True)]
    assert below == holm_rejects(p_values, 0.05)


def test_one_candidate_gets_the_whole_level() -> None:
    assert holm_alphas([0.3], 0.05) == (0.05,)
    assert holm_alphas([], 0.05) == ()


def test_levels_stop_growing_at_the_first_failure() -> None:
    levels = holm_alphas([0.9, 0.001, 0.03, 0.02], 0.05)
    # 0.001 passes 0.05 / 4; 0.02 fails 0.05 / 3; the others stay there though 0.03 < 0.05.
    assert levels == pytest.approx((0.05 / 3, 0.05 / 4, 0.05 / 3, 0.05 / 3))


def test_equal_p_values_are_judged_one_after_the_other() -> None:
    assert holm_alphas([0.02, 0.02], 0.05) == (0.025, 0.05)


def test_senseless_input_is_refused() -> None:
    with pytest.raises(ValueError, match="p-values"):
        holm_alphas([0.5, float("nan")], 0.05)
    with pytest.raises(ValueError, match="level"):
        holm_alphas([0.5], 0.0)

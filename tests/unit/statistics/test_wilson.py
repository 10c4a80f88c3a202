"""Rates with their intervals."""

import pytest

from ridgeline.statistics.significance import wilson


def test_the_interval_of_one_in_thirty_four_is_the_published_one() -> None:
    found = wilson(1, 34)
    assert found.share == pytest.approx(1 / 34)
    assert (found.low, found.high) == (pytest.approx(0.0052, abs=1e-4), pytest.approx(0.149, 1e-2))


def test_a_rate_of_zero_has_an_upper_limit() -> None:
    found = wilson(0, 20)
    assert found.low == 0.0
    assert found.high == pytest.approx(0.161, abs=1e-3)


def test_a_rate_of_one_mirrors_a_rate_of_zero() -> None:
    never, always = wilson(0, 20), wilson(20, 20)
    assert always.high == 1.0
    assert always.low == pytest.approx(1 - never.high)


def test_more_trials_narrow_it() -> None:
    few, many = wilson(2, 40), wilson(20, 400)
    assert few.low < many.low < 0.05 < many.high < few.high


def test_no_trials_give_the_interval_from_zero_to_one() -> None:
    found = wilson(0, 0)
    assert (found.share, found.low, found.high) == (None, 0.0, 1.0)


@pytest.mark.parametrize(("count", "of"), [(3, 2), (-1, 2)])
def test_an_invalid_rate_is_refused(count: int, of: int) -> None:
    with pytest.raises(ValueError, match="no rate"):
        wilson(count, of)

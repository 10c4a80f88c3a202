"""How many calls make a sample."""

import pytest

from ridgeline.comparison.preparation import BLOCK_NS, even_calls


def test_a_block_is_at_least_ten_milliseconds() -> None:
    assert even_calls([3e6]) == [4]
    assert even_calls([20e6]) == [1]
    assert even_calls([1e3])[0] * 1e3 >= BLOCK_NS


def test_variants_of_about_the_same_speed_have_as_many_calls() -> None:
    assert even_calls([1.0e6, 1.1e6, 0.9e6]) == [12, 12, 12]
    assert even_calls([2e6, 5e6]) == [5, 5]


def test_an_variant_far_faster_has_its_own_and_the_slow_one_no_longer_blocks_than_it_needs() -> (
    None
):
    assert even_calls([20e6, 20e3]) == [1, 500]


@pytest.mark.parametrize("ns", [0.0, 1e-3, 1e12])
def test_times_beyond_any_sense_give_a_count(ns: float) -> None:
    assert 1 <= even_calls([ns, 1e6])[0] <= 1 << 20

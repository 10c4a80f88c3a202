"""The largest batch that fits, on predictions made up so that the border is known."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.study.variation import MAX_BATCH, MAX_PASSES, largest_batch
from ridgeline.records.model import Fit


class Predicted:
    """A prediction that remembers what it was asked."""

    def __init__(self, peak: Callable[[int], int]) -> None:
        self.peak = peak
        self.tried: list[int] = []

    def __call__(self, batch: int) -> int:
        self.tried.append(batch)
        return self.peak(batch)


def border(peak: Callable[[int], int], budget: int) -> tuple[Fit, Predicted]:
    asked = Predicted(peak)
    fit = largest_batch(asked, budget, "training")
    assert len(set(asked.tried)) == len(asked.tried) == fit.passes <= MAX_PASSES
    return fit, asked


@given(
    fixed=st.integers(0, 10**12),
    each=st.integers(1, 10**9),
    room=st.integers(0, 10**13),
)
def test_with_linear_memory_the_border_is_exact_and_both_sides_were_tried(
    fixed: int, each: int, room: int
) -> None:
    budget = fixed + room
    fit, asked = border(lambda batch: fixed + each * batch, budget)
    truth = min(room // each, MAX_BATCH)
    assert fit.batch == truth
    if truth:
        assert fit.batch in asked.tried
        assert fit.peak_bytes == fixed + each * truth
    if truth < MAX_BATCH:
        assert fit.next_batch == truth + 1
        assert fit.next_batch in asked.tried
        assert fit.next_peak_bytes == fixed + each * (truth + 1)


def test_a_line_takes_few_passes() -> None:
    fit, _ = border(lambda batch: 10**9 + 123_456 * batch, 80 * 2**30)
    assert fit.passes <= 6


@given(
    each=st.integers(1, 10**4),
    block=st.integers(2, 2**12),
    truth=st.integers(1, 10**6),
)
def test_rounding_to_blocks_does_not_hide_the_border(each: int, block: int, truth: int) -> None:
    def peak(batch: int) -> int:
        return -(-each * batch // block) * block

    fit, asked = border(peak, peak(truth))
    assert fit.batch >= truth
    assert peak(fit.batch) <= fit.budget_bytes < peak(fit.batch + 1)
    assert {fit.batch, fit.batch + 1} <= set(asked.tried)


@given(
    low=st.integers(1, 100),
    steep=st.integers(1, 100),
    kink=st.integers(2, 10**4),
    truth=st.integers(1, 2 * 10**4),
)
def test_the_border_is_found_beyond_a_kink_in_memory(
    low: int, steep: int, kink: int, truth: int
) -> None:
    def peak(batch: int) -> int:
        return max(1000 + low * batch, 1000 + low * kink + (low + steep) * (batch - kink))

    fit, asked = border(peak, peak(truth))
    assert fit.batch == truth
    assert {truth, truth + 1} <= set(asked.tried)


def test_if_nothing_fits_the_batch_is_zero_with_the_need_of_one_sample() -> None:
    fit, asked = border(lambda batch: 10 + batch, 5)
    assert (fit.batch, fit.peak_bytes) == (0, 0)
    assert (fit.next_batch, fit.next_peak_bytes) == (1, 11)
    assert asked.tried == [1]


def test_if_everything_fits_the_search_stops_at_the_largest_batch() -> None:
    fit, asked = border(lambda batch: 100, 100)
    assert fit.batch == MAX_BATCH == max(asked.tried)
    assert (fit.next_batch, fit.next_peak_bytes) == (0, 0)


def test_one_sample_that_just_fits() -> None:
    fit, _ = border(lambda batch: 10 * batch, 10)
    assert (fit.batch, fit.next_batch, fit.next_peak_bytes) == (1, 2, 20)


def test_a_jump_in_memory_is_found_within_the_limit_of_passes() -> None:
    """A kernel that switches to a larger workspace at some batch."""

    def peak(batch: int) -> int:
        return batch if batch < 1000 else batch + 10**6

    fit, _ = border(peak, 2000)
    assert (fit.batch, fit.next_batch) == (999, 1000)


def test_an_error_of_the_model_is_passed_on() -> None:
    def peak(batch: int) -> int:
        raise ValueError("batch must be even")

    with pytest.raises(ValueError, match="even"):
        largest_batch(peak, 100, "inference")

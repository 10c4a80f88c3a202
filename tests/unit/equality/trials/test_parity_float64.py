"""A candidate may be about as far from float64 as the baseline is."""

from math import nan

from ridgeline.equality.differences import small
from ridgeline.equality.trials.outputs import check_float64_error


def test_three_times_the_baselines_error_passes_and_four_does_not() -> None:
    assert check_float64_error(3e-4, 1e-4, 1000).passed
    found = check_float64_error(4e-4, 1e-4, 1000)
    assert not found.passed
    assert found.text == "outputs: 4e-4 from float64 where the baseline is 1e-4, allowed 3e-4"


def test_few_elements_are_allowed_a_larger_error() -> None:
    assert check_float64_error(9e-4, 1e-4, 15).passed
    assert not check_float64_error(9e-4, 1e-4, 16).passed


def test_an_exact_baseline_leaves_a_tenth_of_the_tolerance() -> None:
    assert check_float64_error(9e-7, 0.0, 1000).passed
    assert not check_float64_error(2e-6, 0.0, 1000).passed
    assert check_float64_error(9e-4, 0.0, 1000, tolerance=1e-2).passed


def test_an_error_that_is_not_finite_never_passes() -> None:
    assert not check_float64_error(nan, 1e-4, 1000).passed
    assert not check_float64_error(1e-4, nan, 1000).passed


def test_small_numbers_are_rounded_to_one_digit() -> None:
    assert [small(value) for value in (0.0, 2.3e-7, 9.7e-6, 0.012)] == [
        "0",
        "2e-7",
        "1e-5",
        "1.2 %",
    ]

"""A candidate may err from float64 as the baseline errs."""

from math import nan

from ridgeline.equality.differences import small
from ridgeline.equality.trials.outputs import closer


def test_three_times_the_baselines_error_passes_and_four_does_not() -> None:
    assert closer(3e-4, 1e-4, 1000).passed
    found = closer(4e-4, 1e-4, 1000)
    assert not found.passed
    assert found.text == "outputs: 4e-4 from float64 where the baseline is 1e-4, allowed 3e-4"


def test_few_elements_are_given_more() -> None:
    assert closer(9e-4, 1e-4, 15).passed
    assert not closer(9e-4, 1e-4, 16).passed


def test_an_exact_baseline_leaves_a_tenth_of_the_tolerance() -> None:
    assert closer(9e-7, 0.0, 1000).passed
    assert not closer(2e-6, 0.0, 1000).passed
    assert closer(9e-4, 0.0, 1000, tolerance=1e-2).passed


def test_no_number_is_never_close() -> None:
    assert not closer(nan, 1e-4, 1000).passed
    assert not closer(1e-4, nan, 1000).passed


def test_small_numbers_are_written_as_people_read_them() -> None:
    assert [small(value) for value in (0.0, 2.3e-7, 9.7e-6, 0.012)] == [
        "0",
        "2e-7",
        "1e-5",
        "1.2 %",
    ]

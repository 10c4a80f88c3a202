"""Two one-sided tests of paired values: their errors and their power, by simulation."""

import math

import numpy as np
import pytest

from ridgeline.statistics.equivalence import (
    detectable_difference,
    detection_power,
    equivalence,
    equivalence_power,
    pairs_needed,
)

TRIALS = 2000


def verdicts(
    difference: float, *, pairs: int, margin: float | None = 1.0, spread: float = 0.4, seed: int = 1
) -> list[str]:
    rng = np.random.default_rng(seed)
    made = difference + spread * rng.standard_normal((TRIALS, pairs))
    return [equivalence(row, margin).verdict for row in made.tolist()]


def rate(found: list[str], verdict: str) -> float:
    return found.count(verdict) / len(found)


@pytest.mark.parametrize("pairs", [2, 3, 5, 10])
@pytest.mark.parametrize("difference", [1.0, -1.0, 1.3])
def test_a_difference_at_the_margin_passes_in_five_per_cent_at_most(
    pairs: int, difference: float
) -> None:
    # 2,000 simulations of a rate of 5 % lie below 6.2 % in 99 % of cases.
    assert rate(verdicts(difference, pairs=pairs), "EQUIVALENT") < 0.062


def test_a_margin_taken_from_the_seeds_is_kept_as_well() -> None:
    """The margin is the baseline's spread over the same seeds. A verdict is wrong if it claims less
    than the margin it names, and the true difference is larger."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(TRIALS):
        baseline = rng.standard_normal(5)
        # Both programs share most of what a seed does, as after a change of rounding.
        candidate = baseline + 1.0 + 0.1 * rng.standard_normal(5)
        margin = float(baseline.std(ddof=1))
        found = equivalence((candidate - baseline).tolist(), margin)
        wrong += found.verdict == "EQUIVALENT" and margin <= 1.0
    assert wrong / TRIALS < 0.062


@pytest.mark.parametrize("pairs", [3, 5, 10])
def test_equal_programs_are_seldom_called_different(pairs: int) -> None:
    assert rate(verdicts(0.0, pairs=pairs, margin=0.1), "DIFFERENT") < 0.062


@pytest.mark.parametrize(
    ("pairs", "spread", "difference"), [(3, 0.3, 0.0), (5, 0.6, 0.0), (10, 0.9, 0.2)]
)
def test_the_power_of_equivalence_is_as_stated(
    pairs: int, spread: float, difference: float
) -> None:
    stated = equivalence_power(pairs, spread, 1.0, difference)
    seen = rate(verdicts(difference, pairs=pairs, spread=spread), "EQUIVALENT")
    assert 0.1 < stated < 0.99
    assert seen == pytest.approx(stated, abs=0.035)


@pytest.mark.parametrize("pairs", [2, 3, 5, 20])
def test_the_detectable_difference_is_found_in_four_of_five_cases(pairs: int) -> None:
    smallest = detectable_difference(pairs, 0.4)
    assert detection_power(pairs, 0.4, smallest) == pytest.approx(0.8, abs=1e-3)
    found = rate(verdicts(smallest, pairs=pairs, margin=None), "DIFFERENT")
    assert found == pytest.approx(0.8, abs=0.035)


def test_the_pairs_needed_are_enough_and_one_less_is_not() -> None:
    needed = pairs_needed(1.0, 1.0)
    assert needed is not None
    assert equivalence_power(needed, 1.0, 1.0) >= 0.8 > equivalence_power(needed - 1, 1.0, 1.0)
    assert rate(verdicts(0.0, pairs=needed, spread=1.0), "EQUIVALENT") > 0.76


def test_no_number_of_pairs_is_named_where_none_is_enough() -> None:
    assert pairs_needed(1.0, 0.001) is None


def test_identical_values_are_equivalent_within_any_margin() -> None:
    found = equivalence([0.0, 0.0, 0.0], 1e-9)
    assert (found.verdict, found.ci_low, found.ci_high) == ("EQUIVALENT", 0.0, 0.0)
    assert found.detectable is None
    assert found.equivalence_power is None


def test_equal_printed_values_hide_a_unit_of_their_last_digit() -> None:
    """Accuracies that are printed as 0.91 every time may differ by almost 0.01."""
    coarse = equivalence([0.0, 0.0, 0.0], 0.005, resolution=0.01)
    assert (coarse.verdict, coarse.ci_low, coarse.ci_high) == ("UNDECIDED", -0.01, 0.01)
    assert equivalence([0.0, 0.0, 0.0], 0.02, resolution=0.01).verdict == "EQUIVALENT"
    assert equivalence([0.01, 0.01, 0.01], None, resolution=0.01).verdict == "UNDECIDED"
    assert equivalence([0.02, 0.02, 0.02], None, resolution=0.01).verdict == "DIFFERENT"


def test_without_a_margin_nothing_is_equivalent() -> None:
    found = equivalence([0.1, -0.1, 0.0], None)
    assert found.verdict == "UNDECIDED"
    assert found.margin is None
    assert found.equivalence_power is None
    assert found.detectable is not None


def test_the_interval_is_students() -> None:
    found = equivalence([1.0, 2.0, 3.0], 10.0)
    assert found.difference == pytest.approx(2.0)
    # t of 95 % at 2 degrees of freedom is 2.91999.
    assert found.ci_high - 2.0 == pytest.approx(2.91999 / math.sqrt(3), abs=1e-4)
    assert found.verdict == "EQUIVALENT"


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf]])
def test_too_few_or_broken_differences_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="two finite"):
        equivalence(values, 1.0)


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf])
def test_a_margin_is_positive(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        equivalence([0.0, 0.0], margin)

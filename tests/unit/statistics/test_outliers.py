"""Outliers are counted by fence and side; nothing is dropped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.records.comparison import Outliers
from ridgeline.statistics.samples import classify

# Quartiles 25 and 75: fences at -50 and 150 (mild), -125 and 225 (severe).
EVEN = [float(value) for value in range(101)]


def test_each_fence_and_side_is_counted_by_itself() -> None:
    far = [-1000.0, -1000.0, 1000.0, 1000.0, 1000.0]
    counted = classify(EVEN * 20 + [-60.0, 160.0, 170.0, *far])
    assert counted == Outliers(mild_low=1, mild_high=2, severe_low=2, severe_high=3)
    assert counted.total == 8


def test_a_sample_on_the_fence_is_inside() -> None:
    # Quartiles 0 and 1 whatever the last sample: the mild fence is at 2.5, the severe one at 4.
    samples = [0.0] * 40 + [1.0] * 40
    assert classify([*samples, 2.5]).total == 0
    assert classify([*samples, 2.6]) == Outliers(mild_high=1)
    assert classify([*samples, 4.0]) == Outliers(mild_high=1)
    assert classify([*samples, 4.1]) == Outliers(severe_high=1)


def test_equal_samples_have_no_outliers_and_any_other_is_severe_among_them() -> None:
    assert classify([7.0] * 30).total == 0
    assert classify([7.0] * 30 + [7.1]) == Outliers(severe_high=1)


@given(st.lists(st.floats(1.0, 1e9), min_size=1, max_size=60))
def test_counts_do_not_depend_on_the_unit_and_never_exceed_half(samples: list[float]) -> None:
    counted = classify(samples)
    assert counted.total <= len(samples) / 2
    # Doubling is exact in binary: the counts are the same to the last one.
    assert classify([2 * value for value in samples]) == counted
    mirrored = classify((-np.asarray(samples)).tolist())
    assert mirrored.total == counted.total


@pytest.mark.parametrize("samples", [[], [float("nan")], [1.0, float("inf")]])
def test_empty_and_invalid_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="need"):
        classify(samples)

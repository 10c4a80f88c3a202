"""What a set of timings says, and what it refuses to say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.statistics.samples import median_ranks, summarize

timings = st.floats(min_value=1.0, max_value=1e12, allow_nan=False)


def test_ten_known_samples_give_the_textbook_figures() -> None:
    summary = summarize([float(value) for value in range(10, 0, -1)])
    assert summary.count == 10
    assert summary.median_ns == 5.5
    assert (summary.ci_low_ns, summary.ci_high_ns) == (2.0, 9.0)  # ranks 2 and 9: 97.9 %
    assert (summary.min_ns, summary.max_ns) == (1.0, 10.0)
    assert summary.mean_ns == 5.5
    assert summary.iqr_ns == 4.5
    assert summary.std_ns == pytest.approx(3.0277, abs=1e-4)


def test_five_samples_carry_no_interval_and_say_what_their_range_covers() -> None:
    summary = summarize([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (summary.ci_low_ns, summary.ci_high_ns) == (1.0, 5.0)
    assert any("5 samples carry no 95 % interval" in line for line in summary.refused)
    assert any("93.8 %" in line for line in summary.refused)


def test_six_samples_carry_an_interval() -> None:
    assert not any("interval" in line for line in summarize([1.0] * 6).refused)


def test_one_sample_is_its_own_summary() -> None:
    summary = summarize([7.0])
    assert (summary.median_ns, summary.std_ns, summary.iqr_ns) == (7.0, 0.0, 0.0)
    assert summary.refused[0].startswith("1 sample carries no 95 % interval")


@pytest.mark.parametrize(
    ("count", "p95", "p99"), [(99, False, False), (100, True, False), (499, True, False)]
)
def test_percentiles_are_refused_below_their_sample_counts(
    count: int, p95: bool, p99: bool
) -> None:
    summary = summarize([float(value) for value in range(count)])
    assert (summary.p95_ns is not None) is p95
    assert (summary.p99_ns is not None) is p99
    assert any(line == f"p99 needs 500 samples; there are {count}" for line in summary.refused)


def test_five_hundred_samples_give_both_percentiles() -> None:
    summary = summarize([float(value) for value in range(500)])
    assert summary.p95_ns == pytest.approx(474.05)
    assert summary.p99_ns == pytest.approx(494.01)
    assert summary.refused == ()


@pytest.mark.parametrize("samples", [[], [float("nan")], [1.0, float("inf")]])
def test_empty_and_invalid_samples_are_errors(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="needs"):
        summarize(samples)


@pytest.mark.parametrize("count", [6, 7, 20, 101])
def test_interval_of_the_median_keeps_its_level(count: int) -> None:
    rng = np.random.default_rng(count)
    inside = 0
    for _ in range(2000):
        summary = summarize(rng.exponential(size=count).tolist())
        inside += summary.ci_low_ns <= np.log(2) <= summary.ci_high_ns
    assert 0.94 <= inside / 2000 <= 0.995


def test_ranks_of_the_approximation_meet_the_exact_ones() -> None:
    exact, approximate = median_ranks(1000), median_ranks(1001)
    assert exact is not None
    assert approximate is not None
    assert abs(exact[0] - approximate[0]) <= 1
    assert abs(exact[1] - approximate[1]) <= 2


@given(st.lists(timings, min_size=1, max_size=150))
def test_order_of_figures_holds_for_any_samples(samples: list[float]) -> None:
    summary = summarize(samples)
    assert summary.min_ns <= summary.ci_low_ns <= summary.median_ns
    assert summary.median_ns <= summary.ci_high_ns <= summary.max_ns
    assert summary.p95_ns is None or summary.median_ns <= summary.p95_ns <= summary.max_ns

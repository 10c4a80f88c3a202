"""Whether the machine moved while the rounds ran."""

import numpy as np
import pytest

from ridgeline.statistics.samples import drift
from ridgeline.statistics.simulation import simulated_rounds


def test_the_drift_of_a_machine_that_slows_down_is_measured() -> None:
    rng = np.random.default_rng(0)
    found = drift(100 * np.linspace(1.0, 1.2, 60) * np.exp(0.02 * rng.normal(size=60)))
    assert found.significant
    assert found.share == pytest.approx(0.18, abs=0.03)  # of the median, which is 110


def test_a_machine_that_speeds_up_has_a_negative_drift() -> None:
    assert drift(np.linspace(2.0, 1.0, 30)).share == pytest.approx(-2 / 3)


def test_one_stall_is_no_drift() -> None:
    samples = 10 + 0.1 * np.random.default_rng(1).normal(size=40)
    samples[-1] = 1e6
    found = drift(samples)
    assert not found.significant
    assert abs(found.share) < 0.01


def test_correlated_noise_is_rarely_called_a_drift() -> None:
    found = [
        drift(simulated_rounds(60, 2, drift=0.0, seed=seed).samples[:, 0]) for seed in range(300)
    ]
    assert sum(one.significant for one in found) / 300 <= 0.08


def test_a_long_series_is_folded_and_keeps_its_drift() -> None:
    found = drift(np.linspace(1.0, 1.5, 5000))
    assert found.significant
    assert found.share == pytest.approx(0.4, abs=0.005)


@pytest.mark.parametrize("count", [1, 3])
def test_three_rounds_have_no_drift(count: int) -> None:
    found = drift(np.arange(1.0, count + 1))
    assert (found.share, found.significant) == (0.0, False)


def test_equal_samples_do_not_drift() -> None:
    found = drift(np.full(30, 5.0))
    assert (found.share, found.significant) == (0.0, False)


def test_invalid_times_are_refused() -> None:
    with pytest.raises(ValueError, match="finite and above zero"):
        drift([1.0, -1.0, 2.0, 3.0])

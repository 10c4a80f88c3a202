"""Student's t against tabulated values and against its own definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.statistics.significance import critical_t, normal_cdf, normal_quantile, two_sided_p


@pytest.mark.parametrize(
    ("alpha", "freedom", "tabulated"),
    [
        (0.05, 1, 12.7062047),
        (0.05, 2, 4.3026527),
        (0.05, 14, 2.1447867),
        (0.05, 59, 2.0009954),
        (0.01, 5, 4.0321430),
        (0.01, 30, 2.7499957),
        (0.001, 10, 4.5868939),
        (0.05, 1e9, 1.9599640),
    ],
)
def test_critical_values_are_those_of_the_tables(
    alpha: float, freedom: float, tabulated: float
) -> None:
    assert critical_t(alpha, freedom) == pytest.approx(tabulated, abs=1e-6)


@pytest.mark.parametrize("freedom", [0.7, 2.5, 7.3, 33.3, 500.5])
def test_fractional_degrees_of_freedom_agree_with_the_integral(freedom: float) -> None:
    places = np.linspace(0.0, 1.7, 200_001)
    log_front = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    density = np.exp(log_front - (freedom + 1) / 2 * np.log1p(places**2 / freedom))
    density /= math.sqrt(freedom * math.pi)
    inside = float((density[1:] + density[:-1]).sum()) * (places[1] - places[0]) / 2
    assert two_sided_p(1.7, freedom) == pytest.approx(1 - 2 * inside, abs=1e-8)


def test_one_and_two_degrees_of_freedom_have_closed_forms_far_out() -> None:
    # t with 1 degree is Cauchy's, with 2 it is t / sqrt(2 + t²).
    assert two_sided_p(1e6, 1) == pytest.approx(2 / math.pi * math.atan(1e-6), rel=1e-10)
    assert two_sided_p(1e4, 2) == pytest.approx(-math.expm1(-0.5 * math.log1p(2e-8)), rel=1e-7)


@given(st.floats(1e-9, 0.9), st.floats(1.0, 2000.0))
def test_tail_of_the_critical_value_is_the_level(alpha: float, freedom: float) -> None:
    assert two_sided_p(critical_t(alpha, freedom), freedom) == pytest.approx(alpha, rel=1e-6)


def test_nothing_and_infinity_are_the_ends() -> None:
    assert two_sided_p(0.0, 5) == 1.0
    assert two_sided_p(math.inf, 5) == 0.0
    assert two_sided_p(1e200, 5) == 0.0
    assert two_sided_p(-2.0, 5) == two_sided_p(2.0, 5)


def test_normal_distribution_is_the_limit() -> None:
    assert normal_quantile(0.975) == pytest.approx(1.959964, abs=1e-6)
    assert normal_cdf(-1.959964) == pytest.approx(0.025, abs=1e-6)
    assert two_sided_p(2.0, 999_999) == pytest.approx(2 * normal_cdf(-2.0), rel=1e-5)


def test_senseless_levels_and_freedoms_are_refused() -> None:
    for alpha in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            critical_t(alpha, 5)
    for freedom in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="degrees of freedom"):
            two_sided_p(1.0, freedom)

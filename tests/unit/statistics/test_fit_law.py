"""The law of a sweep: exact laws are found exactly, noise never adds a term."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ridgeline.statistics.law import fit_law, predict

SIZES = [1, 2, 4, 8, 16, 32, 64]

coefficient = st.integers(min_value=1, max_value=10**9)
sweep = st.lists(st.integers(1, 8192), min_size=5, max_size=10, unique=True).map(sorted)


@given(sweep, coefficient)
def test_equal_counts_are_a_constant(sizes: list[int], a: int) -> None:
    law = fit_law(sizes, [a] * len(sizes))
    assert (law.form, law.coefficients, law.exact) == ("constant", (a,), True)


@given(sweep, st.integers(0, 10**9), coefficient)
def test_exact_lines_are_recovered(sizes: list[int], a: int, b: int) -> None:
    assume(b * (sizes[-1] - sizes[0]) > 1e-6 * a)  # else it is a constant to within 1e-9
    law = fit_law(sizes, [a + b * n for n in sizes])
    assert law.form == "linear"
    assert law.exact
    assert predict(law, 3 * sizes[-1]) == pytest.approx(a + 3 * b * sizes[-1], rel=1e-7)


@given(sweep, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**4))
def test_exact_quadratics_are_recovered(sizes: list[int], a: int, b: int, c: int) -> None:
    values = [a + b * n + c * n * n for n in sizes]
    span = sizes[-1] - sizes[0]
    assume(c * span * span > 1e-3 * (a + b * sizes[-1]))  # bent enough to be seen at all
    law = fit_law(sizes, values)
    assert law.form == "quadratic"
    assert law.exact
    assert law.worst_relative_error < 1e-9
    assert predict(law, 2 * sizes[-1]) == pytest.approx(
        a + b * 2 * sizes[-1] + c * 4 * sizes[-1] ** 2, rel=1e-6
    )


@given(
    st.lists(
        st.tuples(st.integers(1, 4096), st.just(0.0) | st.floats(1e-6, 1e9)),
        min_size=2,
        max_size=9,
    ),
)
def test_any_costs_give_a_law_without_negative_terms(points: list[tuple[int, float]]) -> None:
    sizes, values = zip(*points, strict=True)
    assume(len(set(sizes)) >= 2)
    law = fit_law(sizes, values)
    if law.form != "power":
        assert min(law.coefficients) >= 0
    assert np.isfinite(predict(law, max(sizes)))
    assert law.worst_relative_error >= 0


def test_attention_flops_over_three_lengths_are_exact() -> None:
    lengths = [128, 256, 512]
    law = fit_law(lengths, [1000 * n + 4 * n * n for n in lengths])
    assert law.coefficients == (0.0, 1000.0, 4.0)
    assert law.equation == "1,000·n + 4·n²"
    assert law.exact


def test_counts_beyond_the_floats_and_of_numpy_are_exact() -> None:
    lengths = np.array([128, 512, 2048, 8192])
    law = fit_law(lengths, [10**16 * int(n) + 12345678912345 for n in lengths])
    assert law.exact
    assert law.coefficients == (12345678912345.0, 1e16)


def test_halves_are_recovered_as_halves() -> None:
    law = fit_law(SIZES, [n * (n + 1) // 2 for n in SIZES])
    assert law.coefficients == (0.0, 0.5, 0.5)


def test_a_noisy_line_reads_as_a_line_with_its_unit() -> None:
    rng = np.random.default_rng(3)
    values = [(1.2 + 0.31 * n) * (1 + 0.01 * rng.normal()) for n in SIZES]
    law = fit_law(SIZES, values, unit="ms")
    assert law.form == "linear"
    assert law.coefficients == pytest.approx((1.2, 0.31), rel=0.05)
    assert law.equation.count("ms") == 2
    assert law.equation.endswith("ms·n")
    assert not law.exact
    assert 0 < law.worst_relative_error < 0.05
    assert law.r_squared > 0.99


def test_noise_around_a_constant_stays_a_constant() -> None:
    forms = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        forms.append(fit_law(SIZES, (10 * (1 + 0.05 * rng.normal(size=7))).tolist()).form)
    assert forms.count("constant") >= 38


def test_a_noisy_quadratic_is_no_line() -> None:
    rng = np.random.default_rng(5)
    values = [(2.0 + 0.1 * n + 0.05 * n * n) * (1 + 0.02 * rng.normal()) for n in SIZES]
    assert fit_law(SIZES, values).form == "quadratic"


def test_a_root_is_a_power() -> None:
    law = fit_law(SIZES, [3.0 * n**0.5 for n in SIZES], unit="ms", symbol="b")
    assert law.form == "power"
    assert law.coefficients == pytest.approx((3.0, 0.5))
    assert law.equation == "3 ms·b^0.5"
    assert predict(law, 100) == pytest.approx(30.0)


def test_two_counts_make_a_line_that_is_not_called_exact() -> None:
    law = fit_law([1, 2], [100, 101])
    assert (law.form, law.exact) == ("linear", False)
    assert law.coefficients == pytest.approx((99.0, 1.0))


def test_two_timings_within_noise_make_a_constant() -> None:
    assert fit_law([1, 8], [10.03, 10.11]).form == "constant"
    assert fit_law([1, 8], [10.03, 20.11]).form == "linear"


def test_a_cost_that_falls_gets_no_negative_slope() -> None:
    law = fit_law([1, 2, 4, 8], [10.5, 9.0, 3.0, 2.5])
    assert law.form == "power" or min(law.coefficients) >= 0


def test_zeros_are_a_constant_zero() -> None:
    law = fit_law([1, 2, 3], [0, 0, 0], unit="FLOP")
    assert (law.form, law.equation, law.r_squared) == ("constant", "0 FLOP", 1.0)


@pytest.mark.parametrize(
    ("sizes", "values", "reason"),
    [
        ([4], [1.0], "two different sizes"),
        ([4, 4], [1.0, 1.1], "two different sizes"),
        ([], [], "two different sizes"),
        ([1, 2], [1.0], "one value a size"),
        ([0, 1], [1.0, 2.0], "positive"),
        ([1, 2], [-1.0, 2.0], "not negative"),
        ([1, 2], [float("nan"), 2.0], "finite"),
    ],
)
def test_invalid_sizes_and_values_are_refused(
    sizes: list[float], values: list[float], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        fit_law(sizes, values)

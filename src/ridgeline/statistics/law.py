"""The law by which a cost grows with a size: constant, linear, quadratic or a power.

A cost is a sum of terms that are not negative. So a candidate is a set of terms (1, n, n²) whose
least-squares coefficients are not negative, or a power a·n^k. Errors are relative: an error of a
millisecond is nothing at 1 s and everything at 2 ms. Candidates are judged by leave-one-out
cross-validation, and the simplest one within the noise wins, so that noise never turns a constant
into a line. A candidate needs one size more than it has coefficients, or leaving one out would test
nothing. Two sizes are the exception: they give a line, or a constant.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.model import Form, Law

Floats = NDArray[np.float64]

NOISE = 0.02
"""Relative errors up to 2 % are the noise of any timing."""
# The error of a simpler law may be this many times the smallest: with few points, errors by
# leave-one-out are coarse.
_MAX_ERROR_FACTOR = 1.5
_MAX_EXACT_ERROR = 1e-9

_FORMS: tuple[Form, ...] = ("constant", "linear", "quadratic")
_POWER = ()  # stands for the power law among the sets of exponents
# From the simplest, by the number of coefficients and then by degree. The power law comes after the
# polynomials with as many coefficients, because it also fits many curves that are no power.
_CANDIDATES: tuple[tuple[int, ...], ...] = (
    (0,),
    (1,),
    (2,),
    (0, 1),
    (1, 2),
    (0, 2),
    _POWER,
    (0, 1, 2),
)


class _Fit(Struct, frozen=True):
    exponents: tuple[int, ...]
    coefficients: tuple[float, ...]
    mean_error: float
    """Mean relative error at the sizes left out of the fit."""
    max_error: float
    """Largest relative error at the sizes left out of the fit."""


def fit_law(
    sizes: Sequence[float], values: Sequence[float], *, unit: str = "", symbol: str = "n"
) -> Law:
    """Fit the law of `values` over `sizes`. `unit` is the unit of the values in the equation.

    Raise ValueError for fewer than two distinct sizes, and for values that are negative or not
    finite.
    """
    points = _Points.checked(sizes, values)
    whole = all(float(value).is_integer() for value in values)
    # Counts have no noise; timings do.
    noise = 0.0 if whole and points.distinct == 2 else NOISE
    best = _exact(sizes, values) if whole else None
    exact = best is not None
    if best is None:
        best = _choose([fit for terms in _CANDIDATES if (fit := _candidate(points, terms))], noise)
    coefficients = _layout(best)
    form: Form = _FORMS[max(best.exponents)] if best.exponents else "power"
    fitted = _evaluate(form, coefficients, points.sizes)
    worst = float(np.max(np.abs(fitted - points.values) / points.scale))
    return Law(
        form=form,
        coefficients=coefficients,
        equation=_equation(form, coefficients, unit, symbol),
        r_squared=_r_squared(points.values, fitted),
        worst_relative_error=worst,
        points=points.distinct,
        exact=exact,
    )


def predict(law: Law, size: float) -> float:
    """Return the value of the law at a size."""
    return float(_evaluate(law.form, law.coefficients, np.asarray([size], dtype=np.float64))[0])


class _Points(Struct, frozen=True):
    sizes: Floats
    values: Floats
    scale: Floats
    """The number that an error is relative to: the value, or the largest value if this one is zero
    or next to zero."""
    distinct: int

    @classmethod
    def checked(cls, sizes: Sequence[float], values: Sequence[float]) -> "_Points":
        x = np.asarray(sizes, dtype=np.float64)
        y = np.asarray(values, dtype=np.float64)
        if x.ndim != 1 or x.shape != y.shape:
            raise ValueError(f"{x.size} sizes and {y.size} values: one value a size is needed")
        if not (np.isfinite(x).all() and (x > 0).all()):
            raise ValueError("sizes must be finite and positive")
        if not (np.isfinite(y).all() and (y >= 0).all()):
            raise ValueError("values must be finite and not negative")
        distinct = int(np.unique(x).size)
        if distinct < 2:
            raise ValueError("a law needs values at two different sizes at least")
        largest = float(y.max()) or 1.0
        # Values below a billionth of the largest would dominate the fit by their relative errors.
        return cls(x, y, np.where(y > 1e-9 * largest, y, largest), distinct)

    def without(self, size: float) -> "_Points":
        kept = self.sizes != size
        return _Points(self.sizes[kept], self.values[kept], self.scale[kept], self.distinct - 1)


def _exact(sizes: Sequence[float], values: Sequence[float]) -> _Fit | None:
    """Return the simplest polynomial that gives every count exactly, or None."""
    for exponents in _CANDIDATES:
        if exponents == _POWER:
            continue
        exact = exact_polynomial(sizes, values, exponents)
        if exact is not None and min(exact) >= 0:
            return _Fit(exponents, tuple(float(value) for value in exact), 0.0, 0.0)
    return None


def _candidate(points: _Points, exponents: tuple[int, ...]) -> _Fit | None:
    """Return the fit with its leave-one-out errors; None if a coefficient is negative, or if there
    are too few sizes to leave one out."""
    needed = len(exponents) or 2
    saturated = points.distinct == 2 and exponents == (0, 1)
    if points.distinct <= needed and not saturated:
        return None
    coefficients = _solve(points, exponents)
    if coefficients is None or any(value < 0 for value in coefficients[: len(exponents)]):
        return None  # the set without the negative term is another candidate
    if saturated:
        return _Fit(exponents, coefficients, 0.0, math.inf)
    errors = []
    for size in np.unique(points.sizes):
        partial = _solve(points.without(float(size)), exponents)
        if partial is None:
            return None
        out = points.sizes == size
        guess = _terms(exponents, partial, points.sizes[out])
        errors.append(np.max(np.abs(guess - points.values[out]) / points.scale[out]))
    return _Fit(exponents, coefficients, float(np.mean(errors)), float(np.max(errors)))


def _solve(points: _Points, exponents: tuple[int, ...]) -> tuple[float, ...] | None:
    """Return the coefficients with the least squares of relative errors. The power law is fitted as
    a line in logarithms."""
    if exponents == _POWER:
        if (points.scale != points.values).any():
            return None  # a zero has no logarithm
        slope, level = np.polyfit(np.log(points.sizes), np.log(points.values), 1)
        return float(np.exp(level)), float(slope)
    columns = np.stack([points.sizes**exponent for exponent in exponents], axis=1)
    height = columns.max(axis=0)  # a column with 1e10 beside one with 1 would lose digits
    weighted = columns / height / points.scale[:, None]
    solution = np.linalg.lstsq(weighted, points.values / points.scale, rcond=None)[0] / height
    # A term that contributes less than 1e-12 of every value is a rounding error.
    share = np.max(np.abs(columns * solution) / points.scale[:, None], axis=0)
    return tuple(float(value) for value in np.where(share < 1e-12, 0.0, solution))


def _choose(fits: list[_Fit], noise: float) -> _Fit:
    """Return the simplest candidate that is exact, else the simplest within the noise of the best.
    `fits` begins with the simplest, and a constant is always among them."""
    for fit in fits:
        if fit.max_error < _MAX_EXACT_ERROR:
            return fit
    limit = max(noise, _MAX_ERROR_FACTOR * min(fit.mean_error for fit in fits))
    return next(fit for fit in fits if fit.mean_error <= limit)


def _layout(fit: _Fit) -> tuple[float, ...]:
    """Return the coefficients in the order of the form, with zeros for absent terms."""
    if fit.exponents == _POWER:
        return fit.coefficients
    dense = [0.0] * (max(fit.exponents) + 1)
    for exponent, value in zip(fit.exponents, fit.coefficients, strict=True):
        dense[exponent] = value
    return tuple(dense)


def _terms(exponents: tuple[int, ...], coefficients: tuple[float, ...], sizes: Floats) -> Floats:
    if exponents == _POWER:
        power: Floats = coefficients[0] * sizes ** coefficients[1]
        return power
    total = np.zeros_like(sizes)
    for exponent, value in zip(exponents, coefficients, strict=True):
        total = total + value * sizes**exponent
    return total


def _evaluate(form: Form, coefficients: tuple[float, ...], sizes: Floats) -> Floats:
    exponents = _POWER if form == "power" else tuple(range(len(coefficients)))
    return _terms(exponents, coefficients, sizes)


def _r_squared(values: Floats, fitted: Floats) -> float:
    around_law = float(np.sum((values - fitted) ** 2))
    around_mean = float(np.sum((values - values.mean()) ** 2))
    if around_mean == 0.0:
        return 1.0 if around_law <= _MAX_EXACT_ERROR * float(np.sum(values**2)) else 0.0
    return 1.0 - around_law / around_mean


def _equation(form: Form, coefficients: tuple[float, ...], unit: str, symbol: str) -> str:
    suffix = f" {unit}" if unit else ""
    if form == "power":
        scale, exponent = coefficients
        return f"{_number(scale)}{suffix}·{symbol}^{exponent:.3g}"
    powers = ("", f"·{symbol}", f"·{symbol}²")
    written = [
        f"{_number(value)}{suffix}{power}"
        for value, power in zip(coefficients, powers, strict=False)
        if value
    ]
    return " + ".join(written) or f"0{suffix}"


def _number(value: float) -> str:
    """Write a count in full, and a measurement with three digits or as a whole number."""
    if abs(value) < 1e15 and (value.is_integer() or 1000 <= abs(value) < 1e9):
        return f"{value:,.0f}"
    return f"{value:.3g}"


_EXACT_SHARE = Fraction(1, 10**9)


def exact_polynomial(
    sizes: Sequence[float], values: Sequence[float], exponents: Sequence[int]
) -> tuple[Fraction, ...] | None:
    """Return the coefficients of the terms n**exponent that give every value to within 1e-9; None
    if there are none. The coefficients are solved from as many points as there are terms, spread
    over the sizes. At least one more distinct size is needed to test them."""
    pairs = [(_plain(size), _plain(value)) for size, value in zip(sizes, values, strict=True)]
    points = sorted(dict(pairs).items())
    terms = len(exponents)
    if len(points) <= terms:
        return None
    spread = [points[round(at * (len(points) - 1) / max(terms - 1, 1))] for at in range(terms)]
    rows = [[size**exponent for exponent in exponents] + [value] for size, value in spread]
    coefficients = _solve_exactly(rows)
    for size, value in pairs:
        given = sum(
            coefficient * size**exponent
            for coefficient, exponent in zip(coefficients, exponents, strict=True)
        )
        if abs(given - value) > _EXACT_SHARE * abs(value):
            return None
    return coefficients


def _plain(number: float) -> Fraction:
    """Return a number as a Fraction. Whole numbers go through int, because numpy's integers
    overflow inside a Fraction."""
    return Fraction(int(number)) if number == int(number) else Fraction(float(number))


def _solve_exactly(rows: list[list[Fraction]]) -> tuple[Fraction, ...]:
    """Solve the rows (coefficients and right side) by Gauss-Jordan elimination. Powers of distinct
    positive sizes are linearly independent, and all their leading minors are positive, so no pivot
    is zero."""
    for at, row in enumerate(rows):
        pivot = [value / row[at] for value in row]
        rows[at] = pivot
        for other, target in enumerate(rows):
            if other != at:
                factor = target[at]
                rows[other] = [x - factor * y for x, y in zip(target, pivot, strict=True)]
    return tuple(row[-1] for row in rows)

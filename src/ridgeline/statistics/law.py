"""The law by which a cost grows with a size.

Costs are sums of non-negative terms, so a candidate is a set of terms (1, n, n²) whose least
squares come out non-negative, or a power a·n^k. Errors are relative: a millisecond off is nothing
at 1 s and everything at 2 ms. Candidates are judged by the error at the point left out, and the
simplest one within the noise wins; in that way a constant never becomes a line because of noise.
A candidate needs one size more than it has coefficients, else leaving one out tests nothing; two
sizes are the exception and give a line, or a constant.
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
"""Errors under 2 % are noise of any timing: the practical threshold used throughout."""
_SLACK = 1.5  # a simpler law may miss by half as much again: LOO errors of few points are coarse
_EXACT = 1e-9

_FORMS: tuple[Form, ...] = ("constant", "linear", "quadratic")
_POWER = ()  # stands for the power law among the sets of exponents
# From the simplest; by coefficients, then by degree. The power law follows the polynomials with
# as many coefficients: it fits what saturates, and curves that are none of its business.
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
    left_out: float
    """Mean relative error at the sizes left out."""
    worst_left_out: float


def fit_law(
    sizes: Sequence[float], values: Sequence[float], *, unit: str = "", symbol: str = "n"
) -> Law:
    """Fit the law of `values` over `sizes`; `unit` is that of the values, for the equation.

    Raises ValueError for fewer than two distinct sizes, and for what is no cost (negative, not
    finite).
    """
    points = _Points.checked(sizes, values)
    whole = all(float(value).is_integer() for value in values)
    # Two counts that differ differ for a reason; two timings may differ by noise.
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
    """The law's value at a size."""
    return float(_evaluate(law.form, law.coefficients, np.asarray([size], dtype=np.float64))[0])


class _Points(Struct, frozen=True):
    sizes: Floats
    values: Floats
    scale: Floats
    """What an error is relative to: the value, or the largest one where it is (next to) zero."""
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
        # A billionth of the largest value is nothing: its own relative error would rule the fit.
        return cls(x, y, np.where(y > 1e-9 * largest, y, largest), distinct)

    def without(self, size: float) -> "_Points":
        kept = self.sizes != size
        return _Points(self.sizes[kept], self.values[kept], self.scale[kept], self.distinct - 1)


def _exact(sizes: Sequence[float], values: Sequence[float]) -> _Fit | None:
    """The simplest polynomial that gives every count, or None."""
    for exponents in _CANDIDATES:
        if exponents == _POWER:
            continue
        found = exact_polynomial(sizes, values, exponents)
        if found is not None and min(found) >= 0:
            return _Fit(exponents, tuple(float(value) for value in found), 0.0, 0.0)
    return None


def _candidate(points: _Points, exponents: tuple[int, ...]) -> _Fit | None:
    """The fit with its error at left-out sizes; None where it is not physical or not testable."""
    needed = len(exponents) or 2
    saturated = points.distinct == 2 and exponents == (0, 1)
    if points.distinct <= needed and not saturated:
        return None
    coefficients = _solve(points, exponents)
    if coefficients is None or any(value < 0 for value in coefficients[: len(exponents)]):
        return None  # the same set without that term is a candidate too
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
    """Least squares of the relative errors; the power law as a line in logarithms."""
    if exponents == _POWER:
        if (points.scale != points.values).any():
            return None  # a zero has no logarithm
        slope, level = np.polyfit(np.log(points.sizes), np.log(points.values), 1)
        return float(np.exp(level)), float(slope)
    columns = np.stack([points.sizes**exponent for exponent in exponents], axis=1)
    height = columns.max(axis=0)  # n² up to 1e10 beside 1 would cost digits
    weighted = columns / height / points.scale[:, None]
    solution = np.linalg.lstsq(weighted, points.values / points.scale, rcond=None)[0] / height
    # A term that adds under 1e-12 of the value anywhere is rounding, of either sign.
    share = np.max(np.abs(columns * solution) / points.scale[:, None], axis=0)
    return tuple(float(value) for value in np.where(share < 1e-12, 0.0, solution))


def _choose(fits: list[_Fit], noise: float) -> _Fit:
    """The simplest candidate that is exact, else the simplest within the noise of the best. The
    fits come simplest first; a constant is always among them."""
    for fit in fits:
        if fit.worst_left_out < _EXACT:
            return fit
    limit = max(noise, _SLACK * min(fit.left_out for fit in fits))
    return next(fit for fit in fits if fit.left_out <= limit)


def _layout(fit: _Fit) -> tuple[float, ...]:
    """Coefficients in the order of the form, absent terms zero."""
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
        return 1.0 if around_law <= _EXACT * float(np.sum(values**2)) else 0.0
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
    """Counts in full, measurements to three figures or the whole number."""
    if abs(value) < 1e15 and (value.is_integer() or 1000 <= abs(value) < 1e9):
        return f"{value:,.0f}"
    return f"{value:.3g}"


_EXACT_SHARE = Fraction(1, 10**9)


def exact_polynomial(
    sizes: Sequence[float], values: Sequence[float], exponents: Sequence[int]
) -> tuple[Fraction, ...] | None:
    """Coefficients of the terms n**exponent with which every value comes out to within 1e-9, or
    None. The terms are solved from as many points as there are terms, spread over the sizes; at
    least one more distinct size must be there to test them."""
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
    """Through int where it is whole: numpy's own integers overflow inside a Fraction."""
    return Fraction(int(number)) if number == int(number) else Fraction(float(number))


def _solve_exactly(rows: list[list[Fraction]]) -> tuple[Fraction, ...]:
    """Gauss-Jordan. Powers of distinct positive sizes are never dependent, and every leading
    minor of them is positive, so no pivot is zero."""
    for at, row in enumerate(rows):
        pivot = [value / row[at] for value in row]
        rows[at] = pivot
        for other, target in enumerate(rows):
            if other != at:
                factor = target[at]
                rows[other] = [x - factor * y for x, y in zip(target, pivot, strict=True)]
    return tuple(row[-1] for row in rows)

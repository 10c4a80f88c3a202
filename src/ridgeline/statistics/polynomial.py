"""Polynomials through counts, in exact fractions.

Counts (FLOPs, bytes, parameters) follow their law to the last digit, and floating point does not:
with sizes 1, 31, 53, 57, 1094 least squares lost 2 + n beside 672·n² altogether.
"""

from collections.abc import Sequence
from fractions import Fraction

CLOSE = Fraction(1, 10**9)


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
    coefficients = _solve(rows)
    for size, value in pairs:
        given = sum(
            coefficient * size**exponent
            for coefficient, exponent in zip(coefficients, exponents, strict=True)
        )
        if abs(given - value) > CLOSE * abs(value):
            return None
    return coefficients


def _plain(number: float) -> Fraction:
    """Through int where it is whole: numpy's own integers overflow inside a Fraction."""
    return Fraction(int(number)) if number == int(number) else Fraction(float(number))


def _solve(rows: list[list[Fraction]]) -> tuple[Fraction, ...]:
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

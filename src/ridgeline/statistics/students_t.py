"""Student's t and the normal distribution: how far chance alone reaches.

Written out because numpy has neither. Tails keep their relative accuracy far out (1e-30 is as
exact as 0.05), because several candidates and early looks ask for small ones.
"""

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()
_NORMAL_FROM = 1e6  # degrees of freedom from which t and normal agree to 1e-6 relative at z = 3
_TERMS = 500  # of the continued fraction; 60 suffice for 1e6 degrees of freedom


def normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2.0))


def normal_quantile(probability: float) -> float:
    return _NORMAL.inv_cdf(probability)


def two_sided_p(score: float, freedom: float) -> float:
    """How often |t| with `freedom` degrees of freedom (need not be whole) passes |score|."""
    if not freedom > 0.0:
        raise ValueError(f"Student's t needs positive degrees of freedom, not {freedom}")
    if math.isinf(score):
        return 0.0
    if freedom >= _NORMAL_FROM:
        return math.erfc(abs(score) / math.sqrt(2.0))
    square = score * score
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + square))


@lru_cache(maxsize=4096)
def critical_t(alpha: float, freedom: float) -> float:
    """The |t| that chance passes with probability `alpha`: 1.96 for 0.05 and many rounds."""
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"a level must lie between 0 and 1, not {alpha}")
    low, high = 0.0, 2.0
    while two_sided_p(high, freedom) > alpha:
        low, high = high, 2 * high
    # Bisection on the tail: 60 halvings leave nothing of the bracket, and the result is cached.
    for _ in range(60):
        middle = (low + high) / 2
        if two_sided_p(middle, freedom) > alpha:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised; by the continued fraction of Lentz on the side where it converges fast."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c = 1.0
    d = 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1), tiny)
    result = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + numerator * d, tiny)
            c = _away_from_zero(1.0 + numerator / c, tiny)
            result *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return result


def _away_from_zero(value: float, tiny: float) -> float:
    return tiny if abs(value) < tiny else value

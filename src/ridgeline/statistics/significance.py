"""Significance: p-values and critical values, several candidates (Holm), several looks, and rates.

Student's t and the normal distribution are computed here, because numpy has neither. Their tails
keep their relative accuracy far out (1e-30 is as exact as 0.05), because several candidates and
early looks need small levels. `plan_looks` is an alpha-spending design: it sets in advance after
how many rounds a comparison may be judged, and at which level.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from ridgeline.records.selftest import Rate

_NORMAL = NormalDist()
# From so many degrees of freedom on, the tails of t and normal agree to 1e-6 at z = 3.
_MIN_NORMAL_FREEDOM = 1e6
_MAX_FRACTION_TERMS = 500  # 60 are enough for 1e6 degrees of freedom


def normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2.0))


def normal_quantile(probability: float) -> float:
    return _NORMAL.inv_cdf(probability)


def two_sided_p(score: float, freedom: float) -> float:
    """Return the probability that |t| exceeds |score|, with `freedom` degrees of freedom, which
    need not be a whole number."""
    if not freedom > 0.0:
        raise ValueError(f"Student's t needs positive degrees of freedom, not {freedom}")
    if math.isinf(score):
        return 0.0
    if freedom >= _MIN_NORMAL_FREEDOM:
        return math.erfc(abs(score) / math.sqrt(2.0))
    square = score * score
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + square))


@lru_cache(maxsize=4096)
def critical_t(alpha: float, freedom: float) -> float:
    """Return the |t| that is exceeded with probability `alpha`: 1.96 for 0.05 and many rounds."""
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"a level must lie between 0 and 1, not {alpha}")
    low, high = 0.0, 2.0
    while two_sided_p(high, freedom) > alpha:
        low, high = high, 2 * high
    # Bisection: 60 halvings exhaust the precision of a float, and the result is cached.
    for _ in range(60):
        middle = (low + high) / 2
        if two_sided_p(middle, freedom) > alpha:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by Lentz's continued fraction on the side
    where it converges fast."""
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
    for m in range(1, _MAX_FRACTION_TERMS):
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


def welch_p_value(first: ArrayLike, second: ArrayLike) -> float:
    """Return the two-sided p-value of Welch's test that both samples have the same mean."""
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.ndim != 1 or b.ndim != 1 or a.size < 2 or b.size < 2:
        raise ValueError("Welch's test needs two samples of each at least")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("Welch's test needs finite samples")
    of_a, of_b = float(a.var(ddof=1)) / a.size, float(b.var(ddof=1)) / b.size
    error = of_a + of_b
    difference = float(a.mean() - b.mean())
    if error == 0.0:
        return 1.0 if difference == 0.0 else 0.0
    freedom = error**2 / (of_a**2 / (a.size - 1) + of_b**2 / (b.size - 1))
    return two_sided_p(difference / math.sqrt(error), freedom)


def holm_alphas(p_values: Sequence[float], alpha: float) -> tuple[float, ...]:
    """Return the level of each candidate's interval, in the order given, so that an interval that
    excludes 1 is the decision of Holm's method. The smallest p-value is judged at alpha / m, the
    next at alpha / (m - 1) and so on; from the first that fails, all are judged at its level."""
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"a level must lie between 0 and 1, not {alpha}")
    if not all(0.0 <= p <= 1.0 for p in p_values):
        raise ValueError("p-values must lie between 0 and 1")
    levels = [alpha] * len(p_values)
    failed: float | None = None
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        level = alpha / (len(p_values) - rank) if failed is None else failed
        if failed is None and not p_values[at] < level:
            failed = level
        levels[at] = level
    return tuple(levels)


def wilson(count: int, of: int, level: float = 0.95) -> Rate:
    """Return Wilson's score interval of a rate. It keeps its level for few trials and for rates
    near 0. The textbook interval (rate ± 2 standard errors) has no width for 0 of 20 trials."""
    if not 0 <= count <= of:
        raise ValueError(f"{count} of {of} is no rate")
    if of == 0:
        return Rate(count=0, of=0, low=0.0, high=1.0)
    z = normal_quantile((1 + level) / 2)
    share, pull = count / of, z * z / of
    middle = (share + pull / 2) / (1 + pull)
    half = z / (1 + pull) * math.sqrt(share * (1 - share) / of + pull / (4 * of))
    # For 0 and for all trials, the interval ends at exactly 0 or 1, without rounding errors.
    return Rate(
        count=count,
        of=of,
        low=0.0 if count == 0 else middle - half,
        high=1.0 if count == of else middle + half,
    )


Floats = NDArray[np.float64]

FIRST_LOOK_ROUNDS = 15
_GRID_POINTS = 401  # of the density; 201 points give the same levels to 1e-6
_SPENDING_EXPONENT = 1.5  # a share t of the rounds may spend the share t ** 1.5 of alpha
# The last planned look comes after at least this many times the rounds of the one before.
_MIN_LAST_LOOK_RATIO = 1.5
_cdf = np.vectorize(normal_cdf, otypes=[np.float64])


class Looks(Struct, frozen=True):
    """The numbers of rounds after which to look, and the two-sided level of each look."""

    rounds: tuple[int, ...]
    alphas: tuple[float, ...]
    alpha: float

    def level_at(self, rounds: int, *, time_over: bool = False) -> float:
        """Return the level at which to judge after `rounds` rounds, whether a look was planned or
        not.

        An interrupted comparison may spend what the plan allows by then. The rest of alpha is given
        up, because a person who stops may have seen a result. A time limit has seen nothing, so if
        the time is over, all that is left of alpha is spent.
        """
        if rounds < 1:
            raise ValueError("nothing can be judged after no rounds")
        if rounds >= self.rounds[-1]:
            return self.alphas[-1]
        before = tuple(look for look in self.rounds if look < rounds)
        if time_over:
            return _levels((*before, rounds), self.rounds[-1], self.alpha, True)[-1]
        if rounds in self.rounds:
            return self.alphas[self.rounds.index(rounds)]
        return _levels((*before, rounds), self.rounds[-1], self.alpha)[-1]


def plan_looks(max_rounds: int, *, alpha: float = 0.05, first: int = FIRST_LOOK_ROUNDS) -> Looks:
    """Plan looks after 15, 30, 60 … rounds and after `max_rounds`; a single look if `max_rounds` is
    less than twice the first."""
    if max_rounds < 1 or first < 1:
        raise ValueError("looks need one round at least")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"a level must lie between 0 and 1, not {alpha}")
    looks: list[int] = []
    if max_rounds >= 2 * first:
        look = first
        while look * _MIN_LAST_LOOK_RATIO <= max_rounds:
            looks.append(look)
            look *= 2
    rounds = (*looks, max_rounds)
    return Looks(rounds, _levels(rounds, max_rounds, alpha), alpha)


@lru_cache(maxsize=256)
def _levels(
    looks: tuple[int, ...], max_rounds: int, alpha: float, spend_all: bool = False
) -> tuple[float, ...]:
    """Return the nominal two-sided level of each look. With `spend_all`, the last look spends all
    that is left of alpha, however far it is from `max_rounds`.

    Under the null hypothesis the sum of the rounds is a random walk. Its density among the walks
    that no look has stopped is followed from look to look on a grid."""
    levels: list[float] = []
    places: Floats = np.zeros(1)
    weights: Floats = np.ones(1)  # the density at `places`, times the spacing of the grid
    last, spent = 0, 0.0
    for look in looks:
        spread = float(np.sqrt(look - last))
        spend_rest = spend_all and look == looks[-1]
        by_now = alpha if spend_rest else alpha * (look / max_rounds) ** _SPENDING_EXPONENT
        to_spend, spent = by_now - spent, by_now
        band = _band(places, weights, spread, to_spend, float(np.sqrt(look)))
        levels.append(2 * normal_cdf(-band / float(np.sqrt(look))))
        places, weights = _inside(places, weights, spread, band)
        last = look
    return tuple(levels)


def _band(places: Floats, weights: Floats, spread: float, to_spend: float, scale: float) -> float:
    """Return the height beyond which a walk that was not stopped yet gets with probability
    `to_spend` by the next look."""
    low, high = 0.0, -normal_quantile(to_spend / 4) * scale * 2
    for _ in range(60):
        middle = (low + high) / 2
        # The density is symmetric, so leaving above and leaving below are equally likely.
        leaves = 2 * float(weights @ _cdf((places - middle) / spread))
        low, high = (middle, high) if leaves > to_spend else (low, middle)
    return (low + high) / 2


def _inside(places: Floats, weights: Floats, spread: float, band: float) -> tuple[Floats, Floats]:
    """Return the density at the next look of the walks that stayed within the band, as the points
    of a grid and their weights by Simpson's rule."""
    grid = np.linspace(-band, band, _GRID_POINTS)
    strides = (grid[:, None] - places[None, :]) / spread
    density = np.exp(-0.5 * strides**2) @ weights / (spread * np.sqrt(2 * np.pi))
    simpson = np.where(np.arange(_GRID_POINTS) % 2, 4.0, 2.0)
    simpson[[0, -1]] = 1.0
    return grid, density * simpson * (grid[1] - grid[0]) / 3

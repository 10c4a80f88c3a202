"""Student's t and the normal distribution: how far chance alone reaches.

Written out because numpy has neither. Tails keep their relative accuracy far out (1e-30 is as
exact as 0.05), because several candidates and early looks ask for small ones.
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


def welch_p_value(first: ArrayLike, second: ArrayLike) -> float:
    """Two-sided, of "the same mean"."""
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
    """The level for each candidate's interval, in the order given, such that "the interval at
    this level leaves out 1" is Holm's decision: the smallest p-value is judged at alpha / m, the
    next at alpha / (m - 1), and from the first that fails on all at that one's level."""
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
    """Wilson's score interval: it keeps its level for few trials and for rates near 0, where the
    textbook's (rate ± 2 standard errors) says that nothing seen in 20 trials never happens."""
    if not 0 <= count <= of:
        raise ValueError(f"{count} of {of} is no rate")
    if of == 0:
        return Rate(count=0, of=0, low=0.0, high=1.0)
    z = normal_quantile((1 + level) / 2)
    share, pull = count / of, z * z / of
    middle = (share + pull / 2) / (1 + pull)
    half = z / (1 + pull) * math.sqrt(share * (1 - share) / of + pull / (4 * of))
    # At the ends the interval ends there exactly; rounding would leave 1e-18.
    return Rate(
        count=count,
        of=of,
        low=0.0 if count == 0 else middle - half,
        high=1.0 if count == of else middle + half,
    )


Floats = NDArray[np.float64]

FIRST_LOOK_ROUNDS = 15
_POINTS = 401  # of the density on each band; 201 give the same levels to 1e-6
_SPENDING = 1.5
_CLOSEST = 1.5  # a look nearer than that to the last one would tell nothing new
_cdf = np.vectorize(normal_cdf, otypes=[np.float64])


class Looks(Struct, frozen=True):
    """After how many rounds to look, and the two-sided level of each look."""

    rounds: tuple[int, ...]
    alphas: tuple[float, ...]
    alpha: float

    def level_at(self, rounds: int, *, time_over: bool = False) -> float:
        """The level to judge at when the rounds end here: planned or not.

        An interrupt gets what was to be spent by then and is not spent yet. What the rounds not run
        would have spent is given up: whoever stops may have seen something. A clock has not, so
        where the time was over all that is left is spent.
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


def plan_looks(most: int, *, alpha: float = 0.05, first: int = FIRST_LOOK_ROUNDS) -> Looks:
    """Looks after 15, 30, 60 … rounds, and after `most`; a single one where `most` is under
    twice the first."""
    if most < 1 or first < 1:
        raise ValueError("looks need one round at least")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"a level must lie between 0 and 1, not {alpha}")
    looks: list[int] = []
    if most >= 2 * first:
        look = first
        while look * _CLOSEST <= most:
            looks.append(look)
            look *= 2
    rounds = (*looks, most)
    return Looks(rounds, _levels(rounds, most, alpha), alpha)


@lru_cache(maxsize=256)
def _levels(
    looks: tuple[int, ...], most: int, alpha: float, to_the_end: bool = False
) -> tuple[float, ...]:
    """The nominal two-sided level of each look; `to_the_end`: the last one spends all that is
    left, however far it is from `most`."""
    levels: list[float] = []
    places: Floats = np.zeros(1)
    weights: Floats = np.ones(1)  # the density at `places`, times the step of the grid
    last, spent = 0, 0.0
    for look in looks:
        spread = float(np.sqrt(look - last))
        over = to_the_end and look == looks[-1]
        by_now = alpha if over else alpha * (look / most) ** _SPENDING
        to_spend, spent = by_now - spent, by_now
        band = _band(places, weights, spread, to_spend, float(np.sqrt(look)))
        levels.append(2 * normal_cdf(-band / float(np.sqrt(look))))
        places, weights = _inside(places, weights, spread, band)
        last = look
    return tuple(levels)


def _band(places: Floats, weights: Floats, spread: float, to_spend: float, scale: float) -> float:
    """The height a walk that has not left yet passes with probability `to_spend` in one stride."""
    low, high = 0.0, -normal_quantile(to_spend / 4) * scale * 2
    for _ in range(60):
        middle = (low + high) / 2
        # By symmetry of the density, leaving above and below are as likely.
        leaves = 2 * float(weights @ _cdf((places - middle) / spread))
        low, high = (middle, high) if leaves > to_spend else (low, middle)
    return (low + high) / 2


def _inside(places: Floats, weights: Floats, spread: float, band: float) -> tuple[Floats, Floats]:
    """The density after the stride of what stayed within the band; Simpson's rule."""
    grid = np.linspace(-band, band, _POINTS)
    strides = (grid[:, None] - places[None, :]) / spread
    density = np.exp(-0.5 * strides**2) @ weights / (spread * np.sqrt(2 * np.pi))
    simpson = np.where(np.arange(_POINTS) % 2, 4.0, 2.0)
    simpson[[0, -1]] = 1.0
    return grid, density * simpson * (grid[1] - grid[0]) / 3

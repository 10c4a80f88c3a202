"""When the data may be looked at, and how strictly each time.

Looking again and again until something shows finds something in identical code, too: three looks
at 5 % each make 11 %. So the looks are set in advance and share the 5 % out: by round n of `most`
a share (n / most) ** 1.5 of it may be spent. The level of each look follows from the chance that a
Brownian motion leaves its band there for the first time, which is integrated numerically.

Simulated on looks after 15, 30 and 60 rounds (sigma 0.10, 3,000 runs): a 5 % effect was called in
91.6 % with linear spending, 92.3 % with the power of 1.5 and 92.6 % with 2, after 43, 45 and 47
rounds on average; a single look at 60 calls 92.8 %. With stalls it is 67, 70, 72 and 73 %.
"""

from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.statistics.students_t import normal_cdf, normal_quantile

Floats = NDArray[np.float64]

FIRST = 15
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


def plan_looks(most: int, *, alpha: float = 0.05, first: int = FIRST) -> Looks:
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

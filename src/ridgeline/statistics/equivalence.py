"""Equivalence of two programs by pairs of values, and the power of the test.

Two one-sided t tests (TOST): the programs are EQUIVALENT if the 90 % interval of the mean
difference lies within the margin on both sides. A difference at least as large as the margin then
passes in 5 % of cases at most, however the margin was chosen, because the interval would have to
miss the true difference on one side. They are DIFFERENT if the 95 % interval excludes zero and they
are not equivalent. tests/unit/statistics/test_equivalence.py simulates both, and the power.

Power is computed for a known spread of the differences: the density of the estimated spread is
integrated over a grid, which is exact to four digits.
"""

import math
from collections.abc import Sequence

import numpy as np

from ridgeline.records.parity import Equivalence, OutcomeVerdict
from ridgeline.statistics.significance import Floats, critical_t, normal_cdf

LEVEL = 0.9
ALPHA = 0.05
"""The level of each one-sided test of equivalence, and of the two-sided test of a difference."""
POWER = 0.8
"""The power at which detectable differences and the number of pairs are stated."""
MAX_PAIRS_NEEDED = 10_000
_GRID_POINTS = 400
_cdf = np.vectorize(normal_cdf, otypes=[np.float64])


def equivalence(
    differences: Sequence[float], margin: float | None, *, resolution: float = 0.0
) -> Equivalence:
    """Judge paired differences (candidate minus baseline).

    `resolution` is one unit of the last digit of the values. If the differences vary by less than
    half of it, rounding hides how they vary, and the interval reaches one unit to either side.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or values.size < 2 or not np.isfinite(values).all():
        raise ValueError("equivalence needs two finite differences at least")
    if margin is not None and not 0 < margin < math.inf:
        raise ValueError(f"a margin must be positive, not {margin}")
    pairs = int(values.size)
    mean, spread = float(values.mean()), float(values.std(ddof=1))
    if float(np.ptp(values)) == 0.0:
        mean, spread = float(values[0]), 0.0  # numpy's mean of equal values may be off by rounding
    floor = resolution if spread < resolution / 2 else 0.0
    error = spread / math.sqrt(pairs)
    reach = max(critical_t(2 * ALPHA, pairs - 1) * error, floor)
    wide_reach = max(critical_t(ALPHA, pairs - 1) * error, floor)
    verdict: OutcomeVerdict = "UNDECIDED"
    if margin is not None and abs(mean) + reach < margin:
        verdict = "EQUIVALENT"
    elif abs(mean) > wide_reach:
        verdict = "DIFFERENT"
    known = spread > 0.0 and not floor
    return Equivalence(
        verdict=verdict,
        pairs=pairs,
        difference=mean,
        ci_low=mean - reach,
        ci_high=mean + reach,
        level=LEVEL,
        margin=margin,
        spread=spread,
        detectable=detectable_difference(pairs, spread) if known else None,
        equivalence_power=equivalence_power(pairs, spread, margin) if known and margin else None,
        pairs_needed=pairs_needed(spread, margin) if known and margin else None,
    )


def equivalence_power(pairs: int, spread: float, margin: float, difference: float = 0.0) -> float:
    """Return the probability of EQUIVALENT if the true mean is `difference` and the differences
    vary by `spread`."""
    estimates, weights = _spread_estimates(pairs - 1)
    scale = math.sqrt(pairs) / spread
    reach = critical_t(2 * ALPHA, pairs - 1) * estimates
    inside = _cdf((margin - difference) * scale - reach) - _cdf(
        (-margin - difference) * scale + reach
    )
    return float(weights @ np.maximum(inside, 0.0))


def detection_power(pairs: int, spread: float, difference: float) -> float:
    """Return the probability that the 95 % interval excludes zero."""
    estimates, weights = _spread_estimates(pairs - 1)
    scale = math.sqrt(pairs) / spread
    reach = critical_t(ALPHA, pairs - 1) * estimates
    return float(weights @ (_cdf(difference * scale - reach) + _cdf(-difference * scale - reach)))


def detectable_difference(pairs: int, spread: float) -> float:
    """Return the true difference whose 95 % interval excludes zero in 80 % of cases."""
    low, high = 0.0, spread
    while detection_power(pairs, spread, high) < POWER:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        if detection_power(pairs, spread, middle) < POWER:
            low = middle
        else:
            high = middle
    return high


def pairs_needed(spread: float, margin: float) -> int | None:
    """Return how many pairs find programs without any difference EQUIVALENT in 80 % of cases; None
    if even `MAX_PAIRS_NEEDED` do not."""
    low, high = 1, 2
    while equivalence_power(high, spread, margin) < POWER:
        if high >= MAX_PAIRS_NEEDED:
            return None
        low, high = high, min(2 * high, MAX_PAIRS_NEEDED)
    while high - low > 1:
        middle = (low + high) // 2
        if equivalence_power(middle, spread, margin) < POWER:
            low = middle
        else:
            high = middle
    return high


def _spread_estimates(freedom: int) -> tuple[Floats, Floats]:
    """Return estimates of a spread of 1 from `freedom` degrees of freedom, on a grid, and their
    probabilities."""
    end = 1 + 8 / math.sqrt(2 * freedom)
    start = max(1 - 8 / math.sqrt(2 * freedom), 0.0)
    step = (end - start) / _GRID_POINTS
    grid: Floats = start + step * (np.arange(_GRID_POINTS, dtype=np.float64) + 0.5)
    logs = (freedom - 1) * np.log(grid) - freedom * grid**2 / 2
    weights: Floats = np.exp(logs - logs.max())
    weights /= weights.sum()
    return grid, weights

"""How much a sample resembles the one before it: a busy host's timings are not independent."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def average_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse]
    return mean


def lag1_correlation(samples: Sequence[float] | NDArray[np.float64]) -> float:
    """Correlation of each sample's rank with its predecessor's, corrected for the downward bias
    of short series (about (1 + 3r)/n) and held in [0, 0.95]; 0.0 where fewer than 4 samples or
    no spread make it unknowable. Ranks, so that one stall does not decide it."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size < 4:
        return 0.0
    centred = average_ranks(values)
    centred -= centred.mean()
    power = float(np.dot(centred, centred))
    if power == 0.0:
        return 0.0
    raw = float(np.dot(centred[1:], centred[:-1])) / power
    return min(max(raw + (1 + 3 * raw) / values.size, 0.0), 0.95)


def discount(residual: NDArray[np.float64]) -> float:
    """What autocorrelation leaves of a z score: n samples with lag 1 of r carry as much as
    n (1 - r) / (1 + r) independent ones."""
    correlation = lag1_correlation(residual)
    return float(np.sqrt((1 - correlation) / (1 + correlation)))

"""Welch's t test: two sets of samples taken for independent. It is what rounds replace."""

import math

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.statistics.students_t import two_sided_p


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

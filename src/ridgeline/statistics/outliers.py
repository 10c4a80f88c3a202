"""Samples far from the rest, counted and kept: a stall is part of what the machine does."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.comparison import Outliers

MILD = 1.5
SEVERE = 3.0
"""Tukey's fences, in interquartile ranges beyond the quartiles."""


def classify(samples: Sequence[float] | NDArray[np.float64]) -> Outliers:
    """Count the samples beyond each fence; a sample on a fence is inside."""
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError("outliers need at least one sample")
    if not np.isfinite(values).all():
        raise ValueError("outliers need finite samples")
    q1, q3 = np.quantile(values, [0.25, 0.75])
    below, above = q1 - values, values - q3
    mild, severe = MILD * (q3 - q1), SEVERE * (q3 - q1)
    return Outliers(
        mild_low=int(((below > mild) & (below <= severe)).sum()),
        mild_high=int(((above > mild) & (above <= severe)).sum()),
        severe_low=int((below > severe).sum()),
        severe_high=int((above > severe).sum()),
    )

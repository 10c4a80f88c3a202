"""The trend of values over places: the median slope of all pairs, which no single stall moves."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LONGEST = 500
"""Pairs grow with the square: 500 places make 125 thousand, a millisecond's work."""


class Trend(NamedTuple):
    """Theil-Sen's slope and Mann-Kendall's count."""

    slope: float
    rises: float
    """Pairs that rise less pairs that fall."""


def trend(values: Floats, places: Floats | None = None) -> Trend:
    """Of at most LONGEST values; evenly spaced ones stand for a longer series. `places` are
    0, 1, 2 … unless given, and must increase."""
    at = np.arange(values.size, dtype=np.float64) if places is None else places
    if values.size > LONGEST:
        kept = np.linspace(0, values.size - 1, LONGEST).astype(np.intp)
        values, at = values[kept], at[kept]
    if values.size < 2:
        return Trend(0.0, 0.0)
    early, late = np.triu_indices(values.size, k=1)
    differences = values[late] - values[early]
    slope = float(np.median(differences / (at[late] - at[early])))
    return Trend(slope, float(np.sign(differences).sum()))

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


def kendall_score(rises: float, count: int) -> float:
    """Mann-Kendall's z of `rises` among `count` independent values without a trend, unsigned."""
    return (abs(rises) - 1) / float(np.sqrt(count * (count - 1) * (2 * count + 5) / 18))


def fold(series: Floats) -> Floats:
    """At most LONGEST medians of equal blocks; a remainder at the end is left out."""
    width = -(-series.size // LONGEST)
    if width == 1:
        return series
    whole = series.size // width * width
    folded: Floats = np.median(series[:whole].reshape(-1, width), axis=1)
    return folded

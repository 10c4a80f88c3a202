"""How the machine itself moved while the rounds ran, told by the baseline.

Rounds take a drift out of the ratios, so it spoils no verdict. It is worth saying all the same:
the times beside the ratio belong to a machine that was not the same at the end.
"""

import numpy as np
from numpy.typing import ArrayLike

from ridgeline.records.comparison import Drift
from ridgeline.statistics.correlation import discount
from ridgeline.statistics.trend import fold, kendall_score, trend

_SIGNIFICANT_Z = 1.96


def drift(baseline: ArrayLike) -> Drift:
    """Of the baseline's times in the order of the rounds: Theil-Sen's slope for the size,
    Mann-Kendall's count, discounted for autocorrelation, for the significance."""
    series = np.asarray(baseline, np.float64)
    if series.ndim != 1 or not (np.isfinite(series).all() and (series > 0).all()):
        raise ValueError("a drift needs times that are finite and above zero")
    folded = fold(series)
    if folded.size < 4:
        return Drift(share=0.0, significant=False)
    slope, rises = trend(folded)
    residual = folded - slope * np.arange(folded.size)
    score = kendall_score(rises, folded.size) * discount(residual)
    return Drift(
        share=slope * (folded.size - 1) / float(np.median(folded)),
        significant=score > _SIGNIFICANT_Z,
    )

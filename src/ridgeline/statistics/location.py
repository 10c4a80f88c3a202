"""Where the middle of a set of log-ratios lies: the mean of the middle 60 %.

Chosen by simulation: 3,000 comparisons of 60 rounds (700 for Hodges-Lehmann), each with an interval
by bootstrap at 95 %; "level" is how often it left out 1 on identical code, "power" how often on a
5 % effect. Samples follow an AR(1) of 0.45 with sigma 0.10 and drift; "stalls" lengthens 10 % of
them by 30 to 300 %, "two levels" puts 30 % of them 28 % higher.

                          normal            stalls            two levels
                          level   power     level   power     level   power
    median                6.2 %   87 %      6.5 %   71 %      5.3 %   51 %
    20 % trimmed mean     4.9 %   95 %      3.2 %   74 %      5.0 %   53 %
    Hodges-Lehmann        4.3 %   96 %      3.6 %   69 %      5.6 %   55 %

The median breaks the level and loses power; Hodges-Lehmann is as good but for stalls, and at 500
rounds has 125,000 pairs in every resample.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TRIM = 0.2
"""Share left out at each end."""


def trimmed_mean(values: Floats) -> Floats:
    """Along the last axis; under 5 values nothing is left out."""
    count = values.shape[-1]
    cut = int(TRIM * count)
    shares = np.zeros(count)
    shares[cut : count - cut] = 1 / (count - 2 * cut)
    middle: Floats = np.sort(values, axis=-1) @ shares  # a third of the time of a slice's mean
    return middle

"""How often, out of how many: a rate with its interval."""

import math

from ridgeline.records.selftest import Rate
from ridgeline.statistics.students_t import normal_quantile


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

"""How sure a measured gain is. Of a hundred changes that gain nothing one or two look better by
luck, and what a machine does for a minute is in all pairs of that minute: a gain that is not far
from nothing is looked at again, later, and has to be there still."""

import math

from ridgeline.records.facts import Ratio

FAR = 3.0
"""Times as far from nothing as its interval reaches: 6 standard errors are no luck."""
BOTH = 1.5
"""The same, of both looks taken together: 3 standard errors."""


def doubtful(ratio: Ratio) -> bool:
    return _gain(ratio) < FAR * _reach(ratio)


def still_there(first: Ratio, again: Ratio) -> bool:
    """Of two contests of the same: whether they tell it together. Each counts by its pairs."""
    pairs = first.pairs + again.pairs
    gain = (first.pairs * _gain(first) + again.pairs * _gain(again)) / pairs
    reach = math.hypot(*(one.pairs * _reach(one) for one in (first, again))) / pairs
    return gain >= BOTH * reach


def _gain(ratio: Ratio) -> float:
    return math.log(ratio.value)


def _reach(ratio: Ratio) -> float:
    """Of the interval, to one side."""
    return (math.log(ratio.ci_high) - math.log(ratio.ci_low)) / 2

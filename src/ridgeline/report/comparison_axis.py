"""A logarithmic axis of ratios around 1, for the text chart and for the page's plots."""

import math
from collections.abc import Iterable

from msgspec import Struct

_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
_DIGITS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
_WIDEST_LINEAR = 2.5
"""Up to this high / low even steps look even on a logarithmic axis."""
_FARTHEST = 1e6
"""Ratios beyond this lie at the edge."""
_BEYOND = 10.0
"""An interval that reaches farther beyond all estimates is cut there: one arm of which nothing is
known must not press the others into a point."""


class Axis(Struct, frozen=True, kw_only=True):
    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, ratio: float) -> float:
        """From 0 at the left end to 1 at the right; what lies beyond an end is at it."""
        inside = min(max(ratio, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low)


def axis(spans: Iterable[tuple[float, float, float]], band: float, most_ticks: int = 7) -> Axis:
    """Around all of `spans` (low, estimate, high), 1 and the band, with a little air."""
    spans = list(spans)
    middles = [min(max(middle, 1 / _FARTHEST), _FARTHEST) for _, middle, _ in spans]
    least, most = min([*middles, 1.0]) / _BEYOND, max([*middles, 1.0]) * _BEYOND
    known = [min(max(end, least), most) for low, _, high in spans for end in (low, high)]
    known += middles
    # Twice the band, so that a quiet A/A row still shows how narrow it is against it.
    around = 1 + max(2 * band, 0.01)
    low, high = min(1 / around, *known), max(around, *known)
    air = (high / low) ** 0.05
    low, high = low / air, high * air
    return Axis(low=low, high=high, ticks=ticks(low, high, most_ticks))


def ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Round numbers between the ends, 1 among them where it lies there."""
    if high / low <= _WIDEST_LINEAR:
        for step in _STEPS:
            first, last = math.ceil(low / step), math.floor(high / step)
            if last - first + 1 <= most:
                return tuple(round(i * step, 6) for i in range(first, last + 1))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in _DIGITS:
        found = tuple(d * 10.0**p for p in powers for d in digits if low <= d * 10.0**p <= high)
        if len(found) <= most:
            return found
    apart = math.ceil(len(powers) / most)
    return tuple(10.0**p for p in powers if p % apart == 0 and low <= 10.0**p <= high)


def label(tick: float) -> str:
    """A tick as short as it can be: 0.95, 1, 1.5, 1,000."""
    return f"{tick:,.6f}".rstrip("0").rstrip(".")

"""A logarithmic axis of ratios around 1."""

import math
from collections.abc import Iterable

from msgspec import Struct

_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
_DIGITS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
MAX_EVEN_SPAN = 2.5
"""Up to this ratio of the ends, even steps look even on a logarithmic axis."""
MAX_RATIO = 1e6
"""Ratios beyond this lie at the edge."""
MAX_BEYOND_ESTIMATES = 10.0
"""An interval that reaches farther beyond all estimates is cut there: one variant of which nothing
is known must not press the others into a point."""


class Axis(Struct, frozen=True, kw_only=True):
    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, ratio: float) -> float:
        """Return 0 for the left end, 1 for the right end; a ratio beyond an end lies at it."""
        inside = min(max(ratio, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low)


def axis(spans: Iterable[tuple[float, float, float]], band: float, max_ticks: int = 7) -> Axis:
    """Return an axis around all `spans` (low, estimate, high), around 1 and the band, with a little
    air."""
    spans = list(spans)
    middles = [min(max(middle, 1 / MAX_RATIO), MAX_RATIO) for _, middle, _ in spans]
    least = min([*middles, 1.0]) / MAX_BEYOND_ESTIMATES
    most = max([*middles, 1.0]) * MAX_BEYOND_ESTIMATES
    known = [min(max(end, least), most) for low, _, high in spans for end in (low, high)]
    known += middles
    # Twice the band, so that a quiet A/A row still shows how narrow it is against it.
    around = 1 + max(2 * band, 0.01)
    low, high = min(1 / around, *known), max(around, *known)
    air = (high / low) ** 0.05
    low, high = low / air, high * air
    return Axis(low=low, high=high, ticks=ticks(low, high, max_ticks))


def ticks(low: float, high: float, max_ticks: int) -> tuple[float, ...]:
    """Return round numbers between the ends, 1 among them where it lies there."""
    if high / low <= MAX_EVEN_SPAN:
        for step in _STEPS:
            first, last = math.ceil(low / step), math.floor(high / step)
            if last - first + 1 <= max_ticks:
                return tuple(round(i * step, 6) for i in range(first, last + 1))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in _DIGITS:
        places = tuple(d * 10.0**p for p in powers for d in digits if low <= d * 10.0**p <= high)
        if len(places) <= max_ticks:
            return places
    apart = math.ceil(len(powers) / max_ticks)
    return tuple(10.0**p for p in powers if p % apart == 0 and low <= 10.0**p <= high)


def tick_label(tick: float) -> str:
    """Return a tick as short as it can be: 0.95, 1, 1.5, 1,000."""
    return f"{tick:,.6f}".rstrip("0").rstrip(".")

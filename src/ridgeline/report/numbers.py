"""Ratios, shares and times as people read them, and the logarithmic axis that ratios are drawn on.

A ratio and the ends of its interval are written with the same decimals: two between 0.1 and 10,
and more where the interval is so narrow, or so close to 1, that two would hide what decided.
"""

import math
from collections.abc import Iterable

from msgspec import Struct

from ridgeline import units
from ridgeline.records.latency import Latency, Summary

NOTHING = "—"
MIN_EXACT_SHARE = 0.001
"""The digits of a percentage below this share say nothing more."""
MAX_EXTRA_DECIMALS = 2
"""Decimals beyond the usual ones."""
ENDLESS_FACTOR = 1e30
"""The interval of one round, or of two that lie worlds apart: nothing is known of the ratio."""
WIDE_FACTOR = 3.0
"""An interval whose ends lie farther apart is read by its ends: each gets three digits."""

_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
_DIGITS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
MAX_EVEN_SPAN = 2.5
"""Up to this ratio of the ends, even steps look even on a logarithmic axis."""
MAX_RATIO = 1e6
"""Ratios beyond this lie at the edge."""
MAX_BEYOND_ESTIMATES = 10.0
"""An interval that reaches farther beyond all estimates is cut there: one variant of which nothing
is known must not press the others into a point."""


def is_ratio(value: float | None) -> bool:
    """Return whether a ratio can be printed and drawn: it is finite and above 0."""
    return value is not None and math.isfinite(value) and value > 0


def interval(ratio: float, low: float, high: float, sign: str = "") -> str:
    """Return "1.31 [1.27, 1.35]", or with a sign "1.31 × [1.27, 1.35]"."""
    if not is_ratio(ratio):
        return NOTHING
    ends = (low, high)
    if all(map(is_ratio, ends)) and high / low > ENDLESS_FACTOR:
        return f"{_three_digits(ratio, ratio)}{sign} [no interval]"
    if all(map(is_ratio, ends)) and high / low > WIDE_FACTOR:
        middle, first, last = (_three_digits(v, ratio) for v in (ratio, *ends))
        return f"{middle}{sign} [{first}, {last}]"
    places = _decimals(ratio, ends)
    first, last = (_fixed(end, places) for end in ends)
    return f"{_fixed(ratio, places)}{sign} [{first}, {last}]"


def times(ratio: float) -> str:
    """Return a ratio without an interval: 1.04 ×, 3.2 ×, 120 ×."""
    if not is_ratio(ratio):
        return NOTHING
    if ratio < 0.1:
        return f"{units.significant(ratio, 2)} ×"
    return f"{ratio:,.{2 if ratio < 2 else 1 if ratio < 10 else 0}f} ×"


def figure(value: float, digits: int = 3) -> str:
    """Return a number of any size: 0.0123, 784, 1.27e-09."""
    tiny = 0 < abs(value) < 1e-4
    return f"{value:.{digits - 1}e}" if tiny else units.significant(value, digits)


def signed(value: float, digits: int = 3) -> str:
    """Return a difference with its sign: "+0.0123", "-784", "0"."""
    return f"+{figure(value, digits)}" if value > 0 else figure(value, digits)


def share(value: float) -> str:
    """Return a part of something with two digits: 0.0412 becomes "4.1 %"."""
    return f"{units.significant(100 * value, 2)} %" if math.isfinite(value) else NOTHING


def share_text(part: float | None) -> str:
    """Return a part of a whole with three digits: "95.3 %", "< 0.1 %"; a dash where it is not
    known."""
    if part is not None and 0 < part < MIN_EXACT_SHARE:
        return "< 0.1 %"
    return NOTHING if part is None else units.percent(part)


def time(ns: float | None) -> str:
    return NOTHING if ns is None else units.seconds(ns / 1e9)


def median(summary: Summary) -> str:
    """Return "12.3 ms [12.1, 12.5]"; the unit stands once where all three share it."""
    if not summary.count:
        return NOTHING
    middle, low, high = map(time, (summary.median_ns, summary.ci_low_ns, summary.ci_high_ns))
    unit = f" {middle.rpartition(' ')[2]}"
    if low.endswith(unit) and high.endswith(unit) and middle.count(" ") == 1:
        low, high = low.removesuffix(unit), high.removesuffix(unit)
    return f"{middle} [{low}, {high}]"


def timing_text(latency: Latency, name: str) -> str:
    """Return one timing in a few lines, for `print`:
    step  12.3 ms [12.1, 12.5] · p95 13 ms · 200 samples of 4 calls · wall"""
    summary = latency.summary
    parts = [median(summary)]
    for label, value in (("p95", summary.p95_ns), ("p99", summary.p99_ns)):
        if value is not None:
            parts.append(f"{label} {time(value)}")
    each = f" of {latency.block_calls:,} calls" if latency.block_calls > 1 else ""
    parts += [f"{units.plural(summary.count, 'sample')}{each}", latency.clock]
    lines = [f"{name}  {' · '.join(part for part in parts if part)}"]
    return "\n".join([*lines, *(f"  warning: {text}" for text in latency.warnings)])


def _decimals(ratio: float, ends: tuple[float, float]) -> int:
    smallest = min(v for v in (ratio, *ends) if is_ratio(v))
    usual = 2 if ratio < 10 else 1 if ratio < 100 else 0
    if smallest < 0.1:
        usual = 1 - math.floor(math.log10(smallest))
    half = (ends[1] - ends[0]) / 2
    places = usual
    if 0 < half < math.inf:
        places = min(max(usual, math.ceil(-math.log10(half))), usual + MAX_EXTRA_DECIMALS)
    # [1.00, 1.04] reads as "touches 1" where 0.998 crosses it and 1.002 clears it.
    while places < usual + MAX_EXTRA_DECIMALS and any(_looks_like_one(end, places) for end in ends):
        places += 1
    return places


def _three_digits(end: float, ratio: float) -> str:
    """An end a factor of 1,000 from 1, where the ratio is not, says no more than that."""
    if end < 1e-3 <= ratio:
        return "<0.001"
    if end > 1e3 >= ratio:
        return ">1,000"
    return f"{end:,.0f}" if end >= 1e3 else units.significant(end)


def _looks_like_one(value: float, places: int) -> bool:
    return value != 1 and _fixed(value, places) == _fixed(1, places)


def _fixed(value: float, places: int) -> str:
    return f"{value:,.{places}f}" if math.isfinite(value) else NOTHING


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

"""Ratios, shares and times as people read them.

A ratio and the ends of its interval are written with the same decimals: two between 0.1 and 10,
and more where the interval is so narrow, or so close to 1, that two would hide what decided.
"""

import math

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

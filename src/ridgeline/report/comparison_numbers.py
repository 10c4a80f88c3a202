"""A comparison's numbers as people read them: ratios with their intervals, times with theirs.

A ratio and the ends of its interval are written with the same decimals: two between 0.1 and 10,
and more where the interval is so narrow, or so close to 1, that two would hide what decided.
"""

import math

from ridgeline import units
from ridgeline.records.comparison import Arm, Comparison, Estimate
from ridgeline.records.latency import Summary

NOTHING = "—"
_MORE = 2
"""Decimals beyond the usual ones, at most."""
_ENDLESS = 1e30
"""One round, or two that lie worlds apart: nothing is known of where the ratio lies."""
_WIDE = 3.0
"""An interval whose ends lie farther apart is read by its ends: each gets three digits."""


def is_ratio(value: float | None) -> bool:
    """Whether it can be printed and drawn: finite and above 0."""
    return value is not None and math.isfinite(value) and value > 0


def interval(estimate: Estimate, sign: str = "") -> str:
    """1.31 [1.27, 1.35], or with a sign "1.31 × [1.27, 1.35]"."""
    if not is_ratio(estimate.ratio):
        return NOTHING
    ends = (estimate.ci_low, estimate.ci_high)
    if all(is_ratio(end) for end in ends) and ends[1] / ends[0] > _ENDLESS:
        return f"{_far(estimate.ratio, estimate.ratio)}{sign} [no interval]"
    if all(is_ratio(end) for end in ends) and ends[1] / ends[0] > _WIDE:
        middle, low, high = (_far(v, estimate.ratio) for v in (estimate.ratio, *ends))
        return f"{middle}{sign} [{low}, {high}]"
    places = _decimals(estimate.ratio, ends)
    low, high = (_plain(end, places) for end in ends)
    return f"{_plain(estimate.ratio, places)}{sign} [{low}, {high}]"


def span(estimate: Estimate) -> tuple[float, float, float]:
    """Low, middle and high to be drawn; an end that is not a number is where the middle is."""
    middle = estimate.ratio
    low, high = (middle if math.isnan(v) else v for v in (estimate.ci_low, estimate.ci_high))
    return low, middle, high


def times(ratio: float) -> str:
    """A ratio without an interval: 1.04 ×, 3.2 ×, 120 ×."""
    if not is_ratio(ratio):
        return NOTHING
    if ratio < 0.1:
        return f"{units.significant(ratio, 2)} ×"
    return f"{ratio:,.{2 if ratio < 2 else 1 if ratio < 10 else 0}f} ×"


def share(value: float) -> str:
    """A part of something, to two digits: 0.0412 -> "4.1 %"."""
    return f"{units.significant(100 * value, 2)} %" if math.isfinite(value) else NOTHING


def time(ns: float | None) -> str:
    return NOTHING if ns is None else units.seconds(ns / 1e9)


def median(summary: Summary) -> str:
    """12.3 ms [12.1, 12.5]; the unit once where all three share it."""
    if not summary.count:
        return NOTHING
    middle = time(summary.median_ns)
    low, high = time(summary.ci_low_ns), time(summary.ci_high_ns)
    unit = middle.rpartition(" ")[2]
    if low.endswith(f" {unit}") and high.endswith(f" {unit}") and middle.count(" ") == 1:
        low, high = low.removesuffix(f" {unit}"), high.removesuffix(f" {unit}")
    return f"{middle} [{low}, {high}]"


def items_per_second(arm: Arm) -> str:
    if arm.items is None or not is_ratio(arm.summary.median_ns):
        return ""
    return f"{units.count(arm.items / (arm.summary.median_ns / 1e9))}/s"


def band(c: Comparison) -> float:
    """The share that does not matter: the threshold, or what identical code showed if larger."""
    floor = c.control.floor
    return max(c.threshold, floor) if math.isfinite(floor) else c.threshold


def shaded(c: Comparison) -> str:
    """What the band means."""
    whose = "does not matter" if band(c) == c.threshold else "is what identical code showed here"
    return f"± {share(band(c))} {whose}"


def _decimals(ratio: float, ends: tuple[float, float]) -> int:
    smallest = min(v for v in (ratio, *ends) if is_ratio(v))
    usual = 2 if ratio < 10 else 1 if ratio < 100 else 0
    if smallest < 0.1:
        usual = 1 - math.floor(math.log10(smallest))
    half = (ends[1] - ends[0]) / 2
    places = usual
    if 0 < half < math.inf:
        places = min(max(usual, math.ceil(-math.log10(half))), usual + _MORE)
    # [1.00, 1.04] reads as "touches 1" where 0.998 crosses it and 1.002 clears it.
    while places < usual + _MORE and any(_looks_like_one(end, places) for end in ends):
        places += 1
    return places


def _far(end: float, ratio: float) -> str:
    """Three digits; a factor of 1,000 from 1, where the ratio is not, says no more than that."""
    if end < 1e-3 <= ratio:
        return "<0.001"
    if end > 1e3 >= ratio:
        return ">1,000"
    return f"{end:,.0f}" if end >= 1e3 else units.significant(end)


def _looks_like_one(value: float, places: int) -> bool:
    return value != 1 and _plain(value, places) == _plain(1, places)


def _plain(value: float, places: int) -> str:
    return f"{value:,.{places}f}" if math.isfinite(value) else NOTHING

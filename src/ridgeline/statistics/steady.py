"""Where a series of timings becomes steady, if it does.

Three questions, in this order. Is the head far outside what the tail does (a compile, a cold
cache)? Then it is cut. Does the level change (the best split by rank sums, asked again of what
follows the split)? Then steady state begins after the last change. Does what remains still drift?
Then there is none. Ranks throughout, so that a stall of any size counts as one sample; every test
is discounted for autocorrelation, because a busy host's samples come in runs (lag 1 of 0.45 was
measured), which would otherwise read as changes of level.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.statistics.correlation import average_ranks, discount
from ridgeline.statistics.trend import fold, kendall_score, trend

Floats = NDArray[np.float64]

LEVEL_SHARE = 0.02
"""A change of level under 2 %, or under half the noise's own IQR, does not matter to anyone who
reads the median: with 1000 samples on an H200's host, runs of 1 to 3 % are always found."""
DRIFT_SHARE = 0.05
"""Nor does a drift of under 5 % (or half the IQR) from one end of the steady part to the other."""

_SPLIT_Z = 3.4  # the best of n splits of pure noise passes it in about 2 of 100 series
_DRIFT_Z = 2.1  # five samples that fall each time give 2.20: the shortest drift worth refusing
_SHORTEST_SIDE = 3  # a change is at least three samples long; fewer are outliers


def settled(samples: Sequence[float]) -> int:
    """Where to begin all the same: at the first steady sample, else in the middle."""
    start = steady_start(samples)
    return len(samples) // 2 if start is None else start


def steady_start(samples: Sequence[float]) -> int | None:
    """Index of the first steady sample, or None where steady state was not reached: the level
    still drifts, or changed so late that less than a quarter of the series follows."""
    series = np.asarray(samples, dtype=np.float64)
    if series.size < _SHORTEST_SIDE:
        return None
    needed = max(_SHORTEST_SIDE, series.size // 4)
    start = _head(series)
    while series.size - start >= needed:
        rest = series[start:]
        split = _best_split(rest)
        if split is None:
            return None if _drifts(rest) else start
        if _drifts(rest) and _line_fits_better(rest, split):
            return None
        start += split
    return None


def _head(series: Floats) -> int:
    """How many leading samples lie outside the far fences (3 IQR) of the second half. Cutting one
    sample too many costs nothing, so the head needs no test; an outlier further in stays."""
    tail = series[series.size // 2 :]
    q1, q3 = np.quantile(tail, [0.25, 0.75])
    # The quartiles of a tail under 8 samples are luck (5 drifting samples passed for a slow head
    # and a steady tail in 28 of 100 series): there only a head 25 % off is cut, a compile is more.
    floor = LEVEL_SHARE if tail.size >= 8 else 0.25
    margin = max(3 * float(q3 - q1), floor * abs(float(np.median(tail))))
    inside = (series >= q1 - margin) & (series <= q3 + margin)
    return int(np.argmax(inside)) if inside.any() else 0


def _best_split(series: Floats) -> int | None:
    """Length of the first part where the level changes, or None: the split with the largest
    standardised rank-sum difference, if it is significant and the medians differ enough."""
    count = series.size
    if count < 2 * _SHORTEST_SIDE:
        return None
    ranks = average_ranks(series)
    first = np.arange(1, count)
    excess = np.cumsum(ranks)[:-1] - first * (count + 1) / 2
    spread = np.sqrt(first * (count - first) * ranks.var() / (count - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.nan_to_num(np.abs(excess) / spread)
    allowed = slice(_SHORTEST_SIDE - 1, count - _SHORTEST_SIDE)
    split = int(np.argmax(scores[allowed])) + _SHORTEST_SIDE
    before, after = series[:split], series[split:]
    level = float(np.median(after))
    # Spread and correlation of the residuals: those of the series would count the change as noise.
    residual = np.concatenate([before - np.median(before), after - level])
    change = abs(float(np.median(before)) - level)
    if change <= max(LEVEL_SHARE * abs(level), _iqr(residual) / 2):
        return None
    score = float(scores[split - 1]) * discount(residual)
    return split if score > _SPLIT_Z else None


def _drifts(series: Floats) -> bool:
    """Whether the series has a trend: Mann-Kendall for significance, Theil-Sen for size."""
    folded = fold(series)
    count = folded.size
    if count < 4:
        return False
    slope, rises = trend(folded)
    travelled = abs(slope) * (count - 1)
    residual = folded - slope * np.arange(count)
    if travelled <= max(DRIFT_SHARE * abs(float(np.median(folded))), _iqr(residual) / 2):
        return False
    score = kendall_score(rises, count) * discount(residual)
    return bool(score > _DRIFT_Z)


def _line_fits_better(series: Floats, split: int) -> bool:
    """Whether a straight line explains the series better than one step: then the step found is
    only the middle of a drift."""
    times = np.arange(series.size)
    folded = fold(series)
    slope = trend(folded).slope * folded.size / series.size
    line = series - slope * times
    step = np.concatenate(
        [series[:split] - np.median(series[:split]), series[split:] - np.median(series[split:])]
    )
    return bool(np.abs(line - np.median(line)).sum() < np.abs(step).sum())


def _iqr(values: Floats) -> float:
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low)

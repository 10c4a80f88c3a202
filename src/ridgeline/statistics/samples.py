"""One series of timings: summary, steady state, drift, autocorrelation and outliers.

Timings of a busy host are not independent, so significance is discounted for the correlation of
neighbouring samples.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgeline.records.comparison import Drift, Outliers
from ridgeline.records.latency import Summary


def average_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks of the values, from 1. Equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse]
    return mean


def lag1_correlation(samples: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the correlation of each sample's rank with its predecessor's, corrected for the
    downward bias of short series (about (1 + 3r)/n) and limited to [0, 0.95]. Return 0.0 for fewer
    than 4 samples and for samples without spread. Ranks are used so that a single stall does not
    dominate."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size < 4:
        return 0.0
    centred = average_ranks(values)
    centred -= centred.mean()
    power = float(np.dot(centred, centred))
    if power == 0.0:
        return 0.0
    raw = float(np.dot(centred[1:], centred[:-1])) / power
    return min(max(raw + (1 + 3 * raw) / values.size, 0.0), 0.95)


def discount(residual: NDArray[np.float64]) -> float:
    """Return the factor that corrects a z score for autocorrelation. n samples with a lag-1
    correlation of r carry as much information as n (1 - r) / (1 + r) independent ones."""
    correlation = lag1_correlation(residual)
    return float(np.sqrt((1 - correlation) / (1 + correlation)))


Floats = NDArray[np.float64]

MAX_TREND_POINTS = 500
"""A longer series is thinned or folded to this many points. The work grows with the square: 500
points have 125 thousand pairs, which take a millisecond."""


class Trend(NamedTuple):
    """Theil-Sen's slope and Mann-Kendall's statistic."""

    slope: float
    rises: float
    """The number of pairs that rise minus the number of pairs that fall."""


def trend(values: Floats, places: Floats | None = None) -> Trend:
    """Return the trend of `values`. Of a longer series, `MAX_TREND_POINTS` evenly spaced values are
    used. `places` must increase; the default is 0, 1, 2 …"""
    at = np.arange(values.size, dtype=np.float64) if places is None else places
    if values.size > MAX_TREND_POINTS:
        kept = np.linspace(0, values.size - 1, MAX_TREND_POINTS).astype(np.intp)
        values, at = values[kept], at[kept]
    if values.size < 2:
        return Trend(0.0, 0.0)
    early, late = np.triu_indices(values.size, k=1)
    differences = values[late] - values[early]
    slope = float(np.median(differences / (at[late] - at[early])))
    return Trend(slope, float(np.sign(differences).sum()))


def kendall_score(rises: float, count: int) -> float:
    """Return Mann-Kendall's z score, without sign, of `rises` among `count` values."""
    return (abs(rises) - 1) / float(np.sqrt(count * (count - 1) * (2 * count + 5) / 18))


def fold(series: Floats) -> Floats:
    """Return a long series as at most `MAX_TREND_POINTS` medians of equal blocks. A remainder at
    the end is dropped."""
    width = -(-series.size // MAX_TREND_POINTS)
    if width == 1:
        return series
    whole = series.size // width * width
    folded: Floats = np.median(series[:whole].reshape(-1, width), axis=1)
    return folded


_SIGNIFICANT_Z = 1.96  # two-sided 5 %


def drift(baseline: ArrayLike) -> Drift:
    """Return the drift of the baseline's times, given in the order of the rounds. Theil-Sen's slope
    gives the size; Mann-Kendall's statistic, discounted for autocorrelation, the significance."""
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


LEVEL_SHARE = 0.02
"""A change of level below 2 %, or below half the IQR of the noise, does not matter to anyone who
reads the median. Among 1000 samples on the host of an H200, there are always changes of 1 to 3 %.
"""
DRIFT_SHARE = 0.05
"""A drift below 5 %, or below half the IQR, from one end of the steady part to the other does not
matter either."""

_SPLIT_Z = 3.4  # the best split of pure noise exceeds this in about 2 of 100 series
_DRIFT_Z = 2.1  # five samples that all fall give 2.20, and are the shortest drift to be detected
_MIN_SIDE_SAMPLES = 3  # fewer samples at another level are outliers, not a change of level


def settled(samples: Sequence[float]) -> int:
    """Return the index of the first steady sample; the middle if steady state was not reached."""
    start = steady_start(samples)
    return len(samples) // 2 if start is None else start


def steady_start(samples: Sequence[float]) -> int | None:
    """Return the index of the first steady sample. Return None if steady state was not reached: the
    level still drifts, or changed so late that less than a quarter of the series follows."""
    series = np.asarray(samples, dtype=np.float64)
    if series.size < _MIN_SIDE_SAMPLES:
        return None
    needed = max(_MIN_SIDE_SAMPLES, series.size // 4)
    start = _slow_head(series)
    while series.size - start >= needed:
        rest = series[start:]
        split = _best_split(rest)
        if split is None:
            return None if _drifts(rest) else start
        if _drifts(rest) and _line_fits_better(rest, split):
            return None
        start += split
    return None


def _slow_head(series: Floats) -> int:
    """Return how many leading samples lie outside the outer fences (3 IQR) of the second half. To
    cut one sample too many costs nothing, so there is no test. Outliers further in are kept."""
    tail = series[series.size // 2 :]
    q1, q3 = np.quantile(tail, [0.25, 0.75])
    # The quartiles of fewer than 8 samples are left to chance: 5 drifting samples were taken for a
    # slow head and a steady tail in 28 of 100 series. There, only a head that differs by 25 % is
    # cut; a compilation differs by more.
    floor = LEVEL_SHARE if tail.size >= 8 else 0.25
    margin = max(3 * float(q3 - q1), floor * abs(float(np.median(tail))))
    inside = (series >= q1 - margin) & (series <= q3 + margin)
    return int(np.argmax(inside)) if inside.any() else 0


def _best_split(series: Floats) -> int | None:
    """Return how many samples come before the change of level, or None. The change is at the split
    with the largest standardised rank-sum difference, if that is significant and the medians differ
    enough."""
    count = series.size
    if count < 2 * _MIN_SIDE_SAMPLES:
        return None
    ranks = average_ranks(series)
    first = np.arange(1, count)
    excess = np.cumsum(ranks)[:-1] - first * (count + 1) / 2
    spread = np.sqrt(first * (count - first) * ranks.var() / (count - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.nan_to_num(np.abs(excess) / spread)
    allowed = slice(_MIN_SIDE_SAMPLES - 1, count - _MIN_SIDE_SAMPLES)
    split = int(np.argmax(scores[allowed])) + _MIN_SIDE_SAMPLES
    before, after = series[:split], series[split:]
    level = float(np.median(after))
    # Spread and correlation are those of the residuals. In those of the series, the change itself
    # would count as noise.
    residual = np.concatenate([before - np.median(before), after - level])
    change = abs(float(np.median(before)) - level)
    if change <= max(LEVEL_SHARE * abs(level), _iqr(residual) / 2):
        return None
    score = float(scores[split - 1]) * discount(residual)
    return split if score > _SPLIT_Z else None


def _drifts(series: Floats) -> bool:
    """Return whether the series has a trend that is significant (Mann-Kendall) and large enough to
    matter (Theil-Sen)."""
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
    """Return whether a straight line explains the series better than one step. Then the step is
    part of a drift, and what follows it is not steady."""
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


MAX_MEAN_MEDIAN_GAP = 0.05
"""If mean and median differ by less than this share, the median is used, which a stall moves less.
"""


def pace(times: Sequence[float]) -> float:
    """Return the typical time of the steady steps: the median, or the mean if the median would hide
    that steps take different times in turn."""
    start = min(settled(times), len(times) // 2)
    steady = times[start:]
    middle = float(median(steady))
    if (
        middle <= 0
        or _are_close(fmean(steady), middle)
        or _are_close(_mean_without_longest(steady), middle)
    ):
        return middle
    return fmean(steady)


def _are_close(mean: float, middle: float) -> bool:
    return abs(mean / middle - 1) <= MAX_MEAN_MEDIAN_GAP


def _mean_without_longest(times: Sequence[float]) -> float:
    """Return the mean of all times except the longest, which may be a stall."""
    return (sum(times) - max(times)) / max(len(times) - 1, 1)


MIN_P95_SAMPLES = 100
MIN_P99_SAMPLES = 500
"""With fewer samples, fewer than five lie beyond the percentile, and a single stall moves it."""

# Above this, the normal approximation of the binomial distribution gives the same ranks within 1.
_MAX_EXACT_SAMPLES = 1000
_Z95 = 1.959964


def summarize(samples_ns: Sequence[float]) -> Summary:
    """Summarise timings in nanoseconds. Raise ValueError if there are none."""
    samples = np.asarray(samples_ns, dtype=np.float64)
    if samples.ndim != 1 or samples.size == 0:
        raise ValueError("a summary needs at least one sample")
    if not np.isfinite(samples).all():
        raise ValueError("a summary needs finite samples")
    ordered = np.sort(samples)
    count = int(ordered.size)
    refused: list[str] = []
    low, high = _interval(ordered, refused)
    p95 = _percentile(ordered, 95, MIN_P95_SAMPLES, refused)
    p99 = _percentile(ordered, 99, MIN_P99_SAMPLES, refused)
    q1, q3 = np.quantile(ordered, [0.25, 0.75])
    return Summary(
        count=count,
        median_ns=float(np.median(ordered)),
        ci_low_ns=low,
        ci_high_ns=high,
        mean_ns=float(ordered.mean()),
        std_ns=float(ordered.std(ddof=1)) if count > 1 else 0.0,
        min_ns=float(ordered[0]),
        max_ns=float(ordered[-1]),
        iqr_ns=float(q3 - q1),
        p95_ns=p95,
        p99_ns=p99,
        refused=tuple(refused),
    )


def median_ranks(count: int) -> tuple[int, int] | None:
    """Return the ranks, from 0, of the two samples between which the median lies with 95 %
    confidence. Return None for fewer than 6 samples, whose whole range is not enough."""
    if count > _MAX_EXACT_SAMPLES:
        skipped = int(count / 2 - _Z95 * math.sqrt(count) / 2)
        return skipped - 1, count - skipped
    # The probability that the median lies below the k-th sample is the tail of the binomial
    # distribution. Integers keep it exact.
    tail, skipped = 0, 0
    while skipped < count:
        tail += math.comb(count, skipped)
        if tail * 40 > 2**count:  # tail / 2**count > 2.5 %
            break
        skipped += 1
    return (skipped - 1, count - skipped) if skipped else None


def _interval(ordered: np.ndarray, refused: list[str]) -> tuple[float, float]:
    ranks = median_ranks(int(ordered.size))
    if ranks is None:
        count = int(ordered.size)
        share = 100 * (1 - 2 ** (1 - count))
        reach = f"their range covers it in {share:.1f} %" if count > 1 else "there is no range"
        verb = "1 sample carries" if count == 1 else f"{count} samples carry"
        refused.append(f"{verb} no 95 % interval of the median (6 needed): {reach}")
        return float(ordered[0]), float(ordered[-1])
    return float(ordered[ranks[0]]), float(ordered[ranks[1]])


def _percentile(ordered: np.ndarray, rank: int, needed: int, refused: list[str]) -> float | None:
    if ordered.size < needed:
        refused.append(f"p{rank} needs {needed} samples; there are {ordered.size}")
        return None
    return float(np.quantile(ordered, rank / 100))


MILD_FENCE_IQRS = 1.5
SEVERE_FENCE_IQRS = 3.0
"""Tukey's fences, in interquartile ranges beyond the quartiles."""


def classify(samples: Sequence[float] | NDArray[np.float64]) -> Outliers:
    """Count the samples beyond each fence. A sample on a fence is inside."""
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError("outliers need at least one sample")
    if not np.isfinite(values).all():
        raise ValueError("outliers need finite samples")
    q1, q3 = np.quantile(values, [0.25, 0.75])
    below, above = q1 - values, values - q3
    mild, severe = MILD_FENCE_IQRS * (q3 - q1), SEVERE_FENCE_IQRS * (q3 - q1)
    return Outliers(
        mild_low=int(((below > mild) & (below <= severe)).sum()),
        mild_high=int(((above > mild) & (above <= severe)).sum()),
        severe_low=int((below > severe).sum()),
        severe_high=int((above > severe).sum()),
    )

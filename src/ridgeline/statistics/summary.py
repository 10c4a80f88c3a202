"""The summary of one set of timings.

It refuses what the samples cannot carry: a percentile that rests on a handful of samples is None,
with the reason beside it. The interval of the median takes the samples for independent; where
neighbours resemble each other (lag 1 of 0.45 was measured on a busy 2-core host) it is too narrow,
and `lag1_correlation` is there to say so. Comparisons of two sets do not use it.
"""

import math
from collections.abc import Sequence

import numpy as np

from ridgeline.records.latency import Summary

P95_SAMPLES = 100
P99_SAMPLES = 500
"""Below these five samples or fewer lie beyond the percentile, and one stall moves it."""

_EXACT_COUNT = 1000  # above, the normal approximation of the binomial picks the same ranks ±1
_Z95 = 1.959964


def summarize(samples_ns: Sequence[float]) -> Summary:
    """Summarise timings in nanoseconds; raises ValueError when there are none."""
    samples = np.asarray(samples_ns, dtype=np.float64)
    if samples.ndim != 1 or samples.size == 0:
        raise ValueError("a summary needs at least one sample")
    if not np.isfinite(samples).all():
        raise ValueError("a summary needs finite samples")
    ordered = np.sort(samples)
    count = int(ordered.size)
    refused: list[str] = []
    low, high = _interval(ordered, refused)
    p95 = _percentile(ordered, 95, P95_SAMPLES, refused)
    p99 = _percentile(ordered, 99, P99_SAMPLES, refused)
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
    """The two order statistics (from 0) between which the median lies in 95 % of sets, or None
    where even the smallest and the largest sample do not reach that: under 6 samples."""
    if count > _EXACT_COUNT:
        skipped = int(count / 2 - _Z95 * math.sqrt(count) / 2)
        return skipped - 1, count - skipped
    # P(the median lies below the k-th sample) is the binomial tail; integers keep it exact.
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

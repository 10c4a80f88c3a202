"""What is doubtful about a set of samples, each doubt a sentence with its number."""

from collections.abc import Sequence
from statistics import median

from ridgeline.measure.clock import Reading
from ridgeline.statistics.correlation import lag1_correlation
from ridgeline.statistics.summary import summarize

WIDE_SPREAD = 0.25
"""IQR over median from which torch.utils.benchmark, too, warns hardest."""
IDLE_SHARE = 0.7
"""A single busy thread reads 0.97 or more on a quiet host; each further thread adds to it."""
HIDDEN_SHARE = 0.5
RESEMBLANCE = 0.3
"""Lag 1 at which the interval of the median is a quarter too narrow ((1 + r) / (1 - r))."""
_ENOUGH = 30  # a correlation of fewer samples is luck


def doubts(
    samples: Sequence[float], readings: Sequence[Reading], *, steady: bool, least: int
) -> tuple[str, ...]:
    """The sentences that belong beside a median."""
    found = (
        _few(samples, least),
        _unsteady(steady, len(samples)),
        _spread(samples),
        _resemblance(samples),
        _busy_host(readings),
        _hidden_work(readings),
    )
    return tuple(sentence for sentence in found if sentence)


def _few(samples: Sequence[float], least: int) -> str:
    if len(samples) >= least:
        return ""
    slow = median(samples) / 1e9
    return f"one call takes {slow:.0f} s, so only {len(samples)} samples were taken"


def _unsteady(steady: bool, count: int) -> str:
    if steady:
        return ""
    return f"no steady state in {count} samples: the timings still change; allow more time"


def _spread(samples: Sequence[float]) -> str:
    summary = summarize(samples)
    share = summary.iqr_ns / summary.median_ns if summary.median_ns else 0.0
    if share <= WIDE_SPREAD:
        return ""
    return f"the middle half of the samples spreads over {share:.0%} of the median"


def _resemblance(samples: Sequence[float]) -> str:
    correlation = lag1_correlation(samples) if len(samples) >= _ENOUGH else 0.0
    if correlation <= RESEMBLANCE:
        return ""
    return (
        f"neighbouring samples resemble each other (correlation {correlation:.2f}): "
        "the interval of the median is too narrow"
    )


def _busy_host(readings: Sequence[Reading]) -> str:
    if any(reading.issue_ns is not None for reading in readings):
        return ""  # a host that waits for its device is no busy host
    wall = sum(reading.wall_ns for reading in readings)
    share = sum(reading.cpu_ns for reading in readings) / wall if wall else 1.0
    if share >= IDLE_SHARE:
        return ""
    return (
        f"the process had a processor for {share:.0%} of the time: the host is busy, "
        "or the call waits for something"
    )


def _hidden_work(readings: Sequence[Reading]) -> str:
    if any(reading.issue_ns is None for reading in readings):
        return ""
    events = median(reading.total_ns for reading in readings)
    wall = median(reading.wall_ns for reading in readings)
    if events >= HIDDEN_SHARE * wall:
        return ""
    return (
        f"device events saw {events / wall:.0%} of the wall time: work ran on another stream, "
        "or the host is the limit; the wall median is the one to believe"
    )

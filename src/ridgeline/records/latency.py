"""What repeated calls took: every sample, and what they say together."""

from msgspec import Struct


class Summary(Struct, frozen=True, kw_only=True):
    """A set of timings in nanoseconds. A percentile that the samples cannot carry is None, and
    `refused` says why."""

    count: int
    median_ns: float
    ci_low_ns: float
    ci_high_ns: float
    """95 % order-statistic interval of the median."""
    mean_ns: float
    std_ns: float
    min_ns: float
    max_ns: float
    iqr_ns: float
    p95_ns: float | None = None
    p99_ns: float | None = None
    refused: tuple[str, ...] = ()


class Latency(Struct, frozen=True, kw_only=True):
    """One operation timed to steady state on one device."""

    summary: Summary
    samples_ns: tuple[float, ...]
    """Steady samples, in the order taken; one sample is the mean of a block of calls."""
    block_calls: int
    """Calls in one sample: more than one where a call is too short for the clock."""
    warmup_ns: tuple[float, ...]
    """The samples before steady state, kept."""
    steady: bool
    """False where steady state was not reached in the time given."""
    clock: str
    """How it was timed: "wall" on a CPU, "device events" on a GPU."""
    wall_median_ns: float
    """Median by the wall clock: the cross-check of device events."""
    issue_median_ns: float | None = None
    """GPU only: host time until the call returned, before waiting for the device."""
    warnings: tuple[str, ...] = ()

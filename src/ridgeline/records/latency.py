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


class TokenTimes(Struct, frozen=True, kw_only=True):
    """Tokens after the first, timed one by one."""

    positions: tuple[int, ...]
    """Length of the sequence before each token timed: prompt and what was generated."""
    samples_ns: tuple[tuple[float, ...], ...]
    """One row a repeat, one figure a position."""
    summary: Summary
    """Of all samples together."""
    growth_ns: float
    """What one more position adds to a token's time: median slope over the positions."""


class Generation(Struct, frozen=True, kw_only=True):
    """Greedy generation timed on one device, each token waited for, as someone who reads along
    would see it."""

    batch: int
    prompt_tokens: int
    tokens: int
    """Generated, for each sequence of the batch; fewer than asked for where a note says why."""
    first_token_ms: float
    first_token: Summary
    uncached_token_ms: float
    """Median over the positions timed, the whole sequence run again for each token."""
    uncached: TokenTimes
    cached_token_ms: float | None = None
    """The same with the key-value cache; None where the model takes none."""
    cached: TokenTimes | None = None
    cache_speedup: float | None = None
    """uncached_token_ms / cached_token_ms."""
    same_tokens: bool | None = None
    """Whether both ways chose the same tokens at the positions timed."""
    clock: str
    notes: tuple[str, ...] = ()

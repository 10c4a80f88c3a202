"""The times of repeated calls: every sample, and their summary."""

from msgspec import Struct


class Summary(Struct, frozen=True, kw_only=True):
    """The summary of a set of timings in nanoseconds. A percentile for which there are too few
    samples is None, and `refused` says why."""

    count: int
    median_ns: float
    ci_low_ns: float
    ci_high_ns: float
    """The 95 % confidence interval of the median, by order statistics."""
    mean_ns: float
    std_ns: float
    min_ns: float
    max_ns: float
    iqr_ns: float
    p95_ns: float | None = None
    p99_ns: float | None = None
    refused: tuple[str, ...] = ()


class Latency(Struct, frozen=True, kw_only=True):
    """One operation, timed in steady state on one device."""

    summary: Summary
    samples_ns: tuple[float, ...]
    """The steady samples in the order taken. Each is the mean of a block of calls."""
    block_calls: int
    """The number of calls in one sample; more than one if a call is too short for the clock."""
    warmup_ns: tuple[float, ...]
    """The samples before steady state."""
    steady: bool
    """False if steady state was not reached in the time given."""
    clock: str
    """The clock: "wall" on a CPU, "device events" on a GPU."""
    wall_median_ns: float
    """The median by the wall clock, as a check of device events."""
    issue_median_ns: float | None = None
    """GPUs only: the host time until the call returned, before waiting for the device."""
    warnings: tuple[str, ...] = ()


class TokenTimes(Struct, frozen=True, kw_only=True):
    """The times of the tokens after the first, one by one."""

    positions: tuple[int, ...]
    """The length of the sequence (prompt and generated tokens) before each timed token."""
    samples_ns: tuple[tuple[float, ...], ...]
    """One row per repeat, with one time per position."""
    summary: Summary
    """The summary of all samples together."""
    growth_ns: float
    """The time that one more position adds to a token: the median slope over the positions."""


class Generation(Struct, frozen=True, kw_only=True):
    """Greedy generation, timed on one device. Each token is waited for, as a reader of the output
    would."""

    batch: int
    prompt_tokens: int
    tokens: int
    """The tokens generated for each sequence of the batch. If they are fewer than asked for, a note
    says why."""
    first_token_ms: float
    first_token: Summary
    uncached_token_ms: float
    """The median over the timed positions if the whole sequence runs again for each token."""
    uncached: TokenTimes
    cached_token_ms: float | None = None
    """The same with a key-value cache; None if the model does not support one."""
    cached: TokenTimes | None = None
    cache_speedup: float | None = None
    """uncached_token_ms / cached_token_ms."""
    same_tokens: bool | None = None
    """Whether the same tokens were chosen with and without a cache, at the timed positions."""
    clock: str
    notes: tuple[str, ...] = ()

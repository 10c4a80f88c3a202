"""The pace at which a model generates: the first token, and each one after it."""

from msgspec import Struct

from ridgeline.records.latency import Summary


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

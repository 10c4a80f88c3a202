"""What a host says about a workload: records that can travel between processes."""

from msgspec import Struct

from ridgeline.records.comparison import Goal, Guard, Results


class Opened(Struct, frozen=True, kw_only=True):
    """A target, built."""

    goal: Goal | None
    items: float | None
    rtol: float | None
    has_check: bool
    changed: tuple[str, ...]
    """Process-wide settings that building it changed."""
    device: str


class Collected(Struct, frozen=True, kw_only=True):
    call_ns: tuple[float, ...]
    changed: tuple[str, ...]


class Examined(Struct, frozen=True, kw_only=True):
    results: Results
    guards: tuple[Guard, ...]


class Warmed(Struct, frozen=True, kw_only=True):
    block_calls: int
    block_ns: float
    """What a block takes by the wall clock."""
    steady: bool
    steady_ns: float
    """A call's time at the end."""
    excess_ns: float
    """What all calls so far took beyond as many steady ones."""
    calls: int
    events_share: float
    """Device events over wall time: under 1 where work escaped the events' stream."""
    clock: str


class Peak(Struct, frozen=True, kw_only=True):
    bytes: int | None
    method: str

"""Several ranks of one job: who worked, who waited, and for whom. Times are nanoseconds."""

from msgspec import Struct

from ridgeline.records.trust import Trust


class RankTime(Struct, frozen=True, kw_only=True):
    rank: int
    label: str
    busy_ns: int | None
    idle_ns: int | None
    window_ns: int
    compute_ns: int
    communication_ns: int
    wait_ns: int | None = None
    """In collectives, before the last rank had come."""
    transfer_ns: int | None = None
    """In collectives, after it."""
    exposed_communication_ns: int = 0
    overlap: float = 0.0
    """Share of communication hidden behind compute."""
    clock_offset_ns: int = 0
    """Added to its times so that collectives end together."""
    late_count: int = 0
    """Collectives this rank was the last to join."""
    caused_wait_ns: int = 0
    """What the others waited for it, summed over ranks."""
    doing: tuple[tuple[str, int], ...] = ()
    """What it did in the time it was late: (operator, kernel or phase; ns)."""


class CollectiveRow(Struct, frozen=True, kw_only=True):
    name: str
    group: str = ""
    count: int
    bytes: int | None = None
    """Of one call; None where the trace does not say."""
    wire_ns: int
    """Median time from the last rank's arrival to the end."""
    wait_ns: int
    """Summed over ranks and calls."""
    skew_ns: int
    """Largest difference of arrival."""
    algorithm_bytes_s: float | None = None
    bus_bytes_s: float | None = None
    late_rank: int | None = None


class Ranks(Struct, frozen=True, kw_only=True):
    ranks: tuple[RankTime, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    matched: int = 0
    unmatched: int = 0
    late: str = ""
    """One sentence: who was late and with what."""
    trust: Trust = Trust()

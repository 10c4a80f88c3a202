"""Where operators' time went: known work, unknown work, and what binds it. One shape for both
kinds of device, so that `step_work` reads them alike."""

from collections.abc import Iterable

from msgspec import Struct

from ridgeline.records.step_work import Uncounted
from ridgeline.records.trace import RooflineRow

SHORT_NS = 10_000
MOST_UNCOUNTED = 10


class OperatorTime(Struct, frozen=True, kw_only=True):
    wall_ns: int
    busy_ns: int
    input_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int
    """None of them."""
    covered: float
    uncounted: tuple[Uncounted, ...]
    operators: int
    short_share: float
    rows: tuple[RooflineRow, ...]
    """Covered work against its ceilings; `share` is of operator time."""


class Bound(Struct, frozen=True):
    compute_share: float | None = None
    memory_share: float | None = None
    attained: float | None = None
    compute_attained: float | None = None
    memory_attained: float | None = None


def bound(rows: tuple[RooflineRow, ...]) -> Bound:
    """What binds covered work, by its time; nothing where no ceiling is known."""
    compute = [row for row in rows if row.bound == "compute"]
    memory = [row for row in rows if row.bound == "memory"]
    if not compute and not memory:
        return Bound()
    return Bound(
        compute_share=sum(row.share for row in compute),
        memory_share=sum(row.share for row in memory),
        attained=_attained([*compute, *memory]),
        compute_attained=_attained(compute),
        memory_attained=_attained(memory),
    )


def _attained(rows: list[RooflineRow]) -> float | None:
    # Data in a cache, or a Winograd product, may be faster than a ceiling that does not bind it.
    # Such an operator counts as having reached its ceiling.
    held = [
        (row.device_ns, 1.0 if row.over_ceiling else row.attained)
        for row in rows
        if row.over_ceiling or row.attained is not None
    ]
    spent = sum(ns for ns, _ in held)
    return sum(ns * min(share or 0.0, 1.0) for ns, share in held) / spent if spent else None


def uncounted(
    found: Iterable[tuple[str, int, int]], total: int, steps: int
) -> tuple[Uncounted, ...]:
    """From (operator, calls, time), the largest first."""
    ordered = sorted(found, key=lambda one: -one[2])[:MOST_UNCOUNTED]
    return tuple(
        Uncounted(op=op, calls=calls / steps, share=ns / total)
        for op, calls, ns in ordered
        if ns > 0
    )

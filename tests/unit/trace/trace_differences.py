"""Whether two readings of one file say the same, whatever codes they gave to texts."""

from typing import Any

import numpy as np

from ridgeline.trace.trace import Trace

TABLES = ("ops", "annotations", "calls", "device", "syncs", "frames", "memory", "others")
FACTS = (
    "compression",
    "text_bytes",
    "events",
    "flows",
    "truncated",
    "has_all_events",
    "unverified",
    "checksum_differs",
    "digest",
)


def differences(one: Trace, two: Trace) -> list[str]:
    """What differs, in words; nothing where both tell the same."""
    found = [
        f"{fact}: {getattr(one.origin, fact)!r} against {getattr(two.origin, fact)!r}"
        for fact in FACTS
        if getattr(one.origin, fact) != getattr(two.origin, fact)
    ]
    if losses(one) != losses(two):
        found.append(f"losses: {losses(one)} against {losses(two)}")
    if one.metadata != two.metadata:
        found.append(f"metadata: {one.metadata} against {two.metadata}")
    for table in TABLES:
        a, b = getattr(one, table), getattr(two, table)
        if len(a) != len(b):
            found.append(f"{table}: {len(a)} rows against {len(b)}")
            continue
        for column in a.columns():
            if not np.array_equal(told(one, table, column), told(two, table, column)):
                found.append(f"{table}.{column}")
    return found


def told(trace: Trace, table: str, column: str) -> Any:
    """A column as what it means: numbers, or each row's text, lane, shape or arguments."""
    codes = getattr(getattr(trace, table), column)
    if column not in ("name", "lane", "shape", "info"):
        return codes
    unique, rows = np.unique(codes, return_inverse=True)
    return np.array([_meaning(trace, column, int(code)) for code in unique] or [""])[rows]


def _meaning(trace: Trace, column: str, code: int) -> str:
    if column == "name":
        return trace.text(code) + "|"  # numpy drops NULs at the end of a text
    if column == "lane":
        return repr(trace.lanes[code])
    if column == "shape":
        return repr(trace.shape(code))
    return repr(sorted(trace.info(code).items()))


def losses(trace: Trace) -> list[tuple[str, int, bool]]:
    return sorted((loss.reason, loss.count, loss.lost) for loss in trace.origin.losses)


def lost(trace: Trace) -> int:
    return sum(loss.count for loss in trace.origin.losses if loss.lost)

"""What stood in the way of refused edits."""

from ridgeline.records.edit import Patched
from ridgeline.records.facts import Reason


def causes(result: Patched) -> list[Reason | None]:
    return [refused.reason.cause for refused in result.refused]


def obstacles(result: Patched) -> list[str]:
    return [cause.code for cause in causes(result) if cause is not None]

"""What the findings of a run already tell, so that no row says it again."""

import re
from collections.abc import Sequence

from ridgeline.records.finding import Finding
from ridgeline.records.run_summary import Bound, RunSummary, SyncPoint
from ridgeline.report.views.findings import shown_findings

_ABOUT: dict[Bound, tuple[str, ...]] = {
    "input-bound": ("input",),
    "transfer-bound": ("transfer",),
    "launch/overhead-bound": ("synchronisation", "launch", "compile"),
    "communication-bound": ("communication",),
    "late-rank": ("communication",),
    "memory-capacity-bound": ("memory",),
}
"""Families whose findings are the reason of a verdict. A verdict on work (compute, bandwidth) says
how near its ceiling it is, which no finding does."""
_HALF = 0.5
"""Of the deciding share: a finding with so much of it says what the row would."""


def because_told(summary: RunSummary) -> bool:
    families = _ABOUT.get(summary.verdict.bound, ())
    numbers = summary.verdict.numbers
    share = 100 * numbers[0].value if numbers else 0.0
    return any(f.family in families and f.share_pct >= _HALF * share for f in told_by(summary))


def untold_waits(summary: RunSummary) -> tuple[SyncPoint, ...]:
    """Waits in files no finding on waiting is about. A wait has its function's line, a finding
    the exact one: the file is what both have."""
    about = ("synchronisation", "transfer")
    files = {_name(f.file) for f in told_by(summary) if f.family in about and f.file}
    return tuple(
        p for p in summary.sync_points if _name(re.sub(r":\d+.*$", "", p.place)) not in files
    )


def compile_told(summary: RunSummary) -> bool:
    return any(finding.family == "compile" for finding in told_by(summary))


def untold(summary: RunSummary, said: Sequence[str]) -> list[str]:
    """Remarks on the machine that no finding on the machine makes already."""
    claims = " ".join(f.claim.lower() for f in told_by(summary) if f.family == "machine")
    words = [word for word in ("other program", "clock") if word in claims]
    return [text for text in said if not any(word in text.lower() for word in words)]


def findings_told(summary: RunSummary) -> bool:
    """Where no step was timed, or memory ran out, the verdict says it all: "nothing" would read as
    an all-clear."""
    limited = summary.verdict.bound not in ("unknown", "memory-capacity-bound")
    return bool(summary.findings.findings) or (bool(summary.step.phases) and limited)


def told_by(summary: RunSummary) -> Sequence[Finding]:
    return shown_findings(summary.findings)


def next_of(summary: RunSummary) -> tuple[str, ...]:
    """With what explains the first finding before the rest."""
    first = next(iter(told_by(summary)), None)
    return (f"ridgeline explain {first.rule}", *summary.next) if first is not None else summary.next


def _name(file: str) -> str:
    return re.split(r"[\\/]", file)[-1]

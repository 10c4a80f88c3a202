"""Whether a verdict on time may be given at all: a wrong answer is not faster, it is wrong."""

from collections.abc import Sequence

from ridgeline.records.comparison import Guard, Results
from ridgeline.records.facts import Verdict


def validity(
    verdict: Verdict, why: str, results: Results, guards: Sequence[Guard]
) -> tuple[Verdict, str]:
    """The verdict and why, or INVALID and what forbids one."""
    if results.status == "different":
        return "INVALID", f"results differ: {results.detail}"
    failed = [guard for guard in guards if guard.outcome == "failed"]
    if failed:
        said = failed[0].detail or "it failed"
        return "INVALID", f"{failed[0].name}: {said}"
    return verdict, why


def floor_of_candidate(baseline: Guard | None, candidate: Guard | None) -> Guard | None:
    """Return the candidate's check against its roofline floor, given the baseline's. A baseline
    that is itself faster than its floor shows that the ceiling is too low, so that the ceiling says
    nothing about the candidate."""
    if baseline is None or candidate is None:
        return candidate
    if baseline.outcome != "failed" or candidate.outcome != "failed":
        return candidate
    return Guard(
        name=candidate.name,
        outcome="not looked for",
        detail="the ceiling is too low: the baseline is faster than it as well",
    )

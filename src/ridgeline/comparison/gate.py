"""What a comparison means for a job that must pass or fail."""

from collections.abc import Iterable, Sequence

from ridgeline.records.comparison import Candidate, Comparison, Goal, PairFolder, Skipped

CONDITIONS = ("slower", "not-faster", "undecided")
GATE_FAILED, NOT_MEASURED = 3, 4


def failures(found: Comparison | PairFolder, conditions: Sequence[str]) -> tuple[str, ...]:
    """A sentence for each candidate that trips the gate. With any gate, an INVALID one trips it: a
    wrong answer is no pass."""
    if not conditions:
        return ()
    return tuple(
        f"{candidate.arm.name} is {candidate.verdict}"
        for comparison in _comparisons(found)
        for candidate in comparison.candidates
        if _trips(candidate, conditions, comparison.goal)
    )


def exit_code(found: Comparison | PairFolder, conditions: Sequence[str]) -> int:
    """3 where the gate failed, 4 where something could not be measured or is not valid, else 0."""
    if failures(found, conditions):
        return GATE_FAILED
    if any(row.status == "BROKEN" for row in _unmeasured(found)):
        return NOT_MEASURED
    candidates = list(_candidates(found))
    if not candidates or any(c.verdict == "INVALID" for c in candidates):
        return NOT_MEASURED
    return 0


def _trips(candidate: Candidate, conditions: Sequence[str], goal: Goal) -> bool:
    verdict = candidate.verdict
    if goal == "memory" and candidate.goal_met:
        return False  # what it aims at it reached; the price is printed
    return (
        verdict == "INVALID"
        or ("slower" in conditions and verdict == "SLOWER")
        or ("undecided" in conditions and verdict == "UNDECIDED")
        or ("not-faster" in conditions and not _proven(candidate))
    )


def _proven(candidate: Candidate) -> bool:
    """A speedup whose results nobody could compare is no proven one."""
    return candidate.verdict == "FASTER" and candidate.results.ok


def _comparisons(found: Comparison | PairFolder) -> Iterable[Comparison]:
    if isinstance(found, Comparison):
        return (found,)
    return (row.comparison for row in found.pairs if not isinstance(row, Skipped))


def _candidates(found: Comparison | PairFolder) -> Iterable[Candidate]:
    return (c for comparison in _comparisons(found) for c in comparison.candidates)


def _unmeasured(found: Comparison | PairFolder) -> Iterable[Skipped]:
    for comparison in _comparisons(found):
        yield from comparison.broken
    if isinstance(found, PairFolder):
        yield from (row for row in found.pairs if isinstance(row, Skipped))

"""Whether a verdict on time may be given at all: a wrong answer is not faster, it is wrong."""

from collections.abc import Sequence

from ridgeline.records.comparison import Guard, Results, Verdict


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

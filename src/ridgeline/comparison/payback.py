"""When a costly start has been won back: compiling, autotuning, capturing a graph."""

import math

from ridgeline.comparison.hosting.answers import Warmed
from ridgeline.records.facts import Verdict

_LEAST_NS = 50e6
"""A start that costs less than this more than the baseline's is no compilation, but luck."""


def payback(
    baseline: Warmed | None, candidate: Warmed | None, verdict: Verdict, unit: str
) -> tuple[int | None, str]:
    """Calls after which the candidate has overtaken the baseline, and that in words. None where it
    never does, or where it is not known to be faster."""
    if baseline is None or candidate is None:
        return None, ""
    extra_ns = candidate.excess_ns - baseline.excess_ns
    gain_ns = baseline.steady_ns - candidate.steady_ns
    if extra_ns < max(_LEAST_NS, 5 * candidate.steady_ns):
        return (0, "at once") if verdict == "FASTER" else (None, "")
    if verdict == "UNDECIDED":
        return None, "not known"
    if verdict != "FASTER" or gain_ns <= 0:
        return None, "never"
    calls = math.ceil(extra_ns / gain_ns)
    return calls, f"after {calls:,} {unit}{'' if calls == 1 else 's'}"

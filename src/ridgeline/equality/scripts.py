"""What one run of a script left behind."""

import math
from collections.abc import Sequence

from msgspec import Struct

from ridgeline.records.comparison import Results


class ScriptRecord(Struct, frozen=True, kw_only=True):
    """Written by the child at its end."""

    step_ns: tuple[float, ...] = ()
    """From one optimizer step's end to the next one's."""
    step_cpu_ns: tuple[float, ...] = ()
    step_thread_ns: tuple[float, ...] = ()
    """Processor time of the thread that makes the steps, in each step."""
    step_sleeps: tuple[int, ...] = ()
    """Voluntary context switches of that thread in each step; () if the system does not count them.
    """
    steps: int = 0
    losses: tuple[float, ...] = ()
    """Scalars handed to backward, in order."""
    parameter_norms: tuple[float, ...] = ()
    """At the end, of every parameter an optimizer stepped."""
    parameter_sizes: tuple[int, ...] = ()
    """How many numbers each has."""
    device_peak_bytes: int = 0
    clock: str = "wall"


FIRST_LOSSES = 20
"""Rounding grows with every step: later losses of two right programs may lie far apart."""
ALLOWED = 1e-3
SAME_ROUNDING = 1e-5
STRAYS, STRAY = 0.1, 0.25
"""This part of the parameters, each off by no more: one that was not trained at all is further off,
and so is the whole where many were."""
LITTLE = 5.0
"""Times what is allowed: those off by no more are not counted among them,"""
SMALL = 0.01
"""where all that are off hold no more than this part of the numbers."""
_ENOUGH = 8


def compare_scripts(
    baseline: ScriptRecord, again: ScriptRecord, candidate: ScriptRecord, rtol: float | None
) -> Results:
    """`again` is another run of the baseline: how far it is from itself."""
    if baseline.steps != candidate.steps:
        return _different(
            f"{candidate.steps} optimizer steps where the baseline took {baseline.steps}"
        )
    if len(baseline.losses) != len(candidate.losses):
        return _different(
            f"{len(candidate.losses)} losses where the baseline had {len(baseline.losses)}"
        )
    if not baseline.losses and not baseline.parameter_norms:
        return Results(
            status="not compared", method="none", strength="none",
            detail="the scripts hand no loss to backward and step no optimizer",
            reasons=("only exit codes were compared",),
        )  # fmt: skip
    own = _distance(_numbers(baseline), _numbers(again))
    if own > 0.01:
        return Results(
            status="not compared", method="losses", strength="none",
            detail=f"the baseline differs from itself by {own:.1%} from run to run",
            reasons=("the baseline is not repeatable: give it a seed",),
        )  # fmt: skip
    allowed = max(rtol or ALLOWED, 3 * own)
    worst = _distance(_numbers(baseline), _numbers(candidate))
    return _judged(baseline, candidate, worst, allowed, own, rtol)


def _judged(
    baseline: ScriptRecord,
    candidate: ScriptRecord,
    worst: float,
    allowed: float,
    own: float,
    rtol: float | None,
) -> Results:
    losses, norms = baseline.losses[:FIRST_LOSSES], baseline.parameter_norms
    compared = len(losses) + len(norms)
    what = f"{len(losses)} losses and {len(norms)} parameters' norms"
    reasons = []
    if compared < _ENOUGH:
        reasons.append(f"only {compared} numbers were compared")
    if allowed > 0.01:
        reasons.append(f"an answer {allowed:.0%} off would pass")
    strays = _strays(baseline, candidate, allowed) if worst > allowed else ""
    if strays:
        reasons.append(strays)
    status = (
        "bit-identical" if worst == 0
        else "equal" if worst <= max(SAME_ROUNDING, 3 * own)
        else "within tolerance" if worst <= allowed or strays
        else "different"
    )  # fmt: skip
    return Results(
        status=status,  # type: ignore[arg-type]
        method=f"losses of {len(losses)} steps, norms of {len(norms)} parameters",
        strength="weak" if reasons else "strong",
        detail=f"{what} differ by {worst:.2g} at most; {allowed:.2g} is allowed, and the baseline "
        f"differs from itself by {own:.2g}",
        reasons=tuple(reasons),
        compared=compared,
        worst_error=worst if math.isfinite(worst) else None,
        allowed_error=allowed,
    )


def _strays(baseline: ScriptRecord, candidate: ScriptRecord, allowed: float) -> str:
    """A sentence on the few that are off, where all else agrees; "" where it does not."""
    ours, theirs = baseline.parameter_norms, candidate.parameter_norms
    if len(ours) != len(theirs) or not all(map(math.isfinite, (*ours, *theirs))):
        return ""
    apart = [_distance([a], [b]) for a, b in zip(ours, theirs, strict=True)]
    off = [one for one in apart if one > allowed]
    sizes = baseline.parameter_sizes
    numbers = sum(size for size, one in zip(sizes, apart, strict=False) if one > allowed)
    little = LITTLE * allowed if 0 < numbers <= SMALL * sum(sizes) else allowed
    far = sum(one > little for one in apart)
    losses = _distance(baseline.losses[:FIRST_LOSSES], candidate.losses[:FIRST_LOSSES])
    whole = _distance([math.hypot(*ours)], [math.hypot(*theirs)])
    few = far <= STRAYS * len(apart) and max(off, default=math.inf) <= STRAY
    if not baseline.losses or not few or max(losses, whole) > allowed:
        return ""
    return (
        f"{len(off)} of {len(apart)} parameters' norms are up to {max(off):.0%} off, which is so "
        "where a gradient is rounding alone"
    )


def _numbers(record: ScriptRecord) -> Sequence[float]:
    return (*record.losses[:FIRST_LOSSES], *record.parameter_norms)


def _distance(left: Sequence[float], right: Sequence[float]) -> float:
    """The largest relative difference; infinite where one is NaN or Inf and the other is not, or
    where there are not as many."""
    if len(left) != len(right):
        return math.inf
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        if not (math.isfinite(a) and math.isfinite(b)):
            return math.inf
        worst = max(worst, abs(a - b) / max(abs(a), abs(b), 1e-12))
    return worst


def _different(detail: str) -> Results:
    return Results(status="different", method="steps and losses", strength="strong", detail=detail)

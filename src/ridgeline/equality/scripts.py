"""Judges by losses and parameters whether two runs of a script computed the same."""

import math
from collections.abc import Sequence

from msgspec import Struct

from ridgeline.records.comparison import Results

MAX_RECORDED_LOSSES = 1_000
"""Losses and parameters of a program that are recorded for comparing results."""


class ProgramRecord(Struct, frozen=True, kw_only=True):
    """One run of a program, written by its process at its end."""

    step_ns: tuple[float, ...] = ()
    """Time from the end of one optimizer step to the end of the next."""
    step_cpu_ns: tuple[float, ...] = ()
    step_thread_ns: tuple[float, ...] = ()
    """Processor time, in each step, of the thread that makes the steps."""
    step_sleeps: tuple[int, ...] = ()
    """Voluntary context switches of that thread in each step; () if the system does not count them.
    """
    steps: int = 0
    losses: tuple[float, ...] = ()
    """Scalars on which backward was called, in order: the first ones."""
    last_losses: tuple[float, ...] = ()
    loss_count: int = 0
    """The number of all losses."""
    parameter_norms: tuple[float, ...] = ()
    """Final norm of every parameter that an optimizer updated."""
    parameter_sizes: tuple[int, ...] = ()
    """Number of elements of each of these parameters."""
    device_peak_bytes: int = 0
    clock: str = "wall"


COMPARED_LOSSES = 20
"""Only the first losses are compared: rounding grows with every step, so that later losses of two
correct programs may lie far apart."""
DEFAULT_TOLERANCE = 1e-3
ROUNDING_TOLERANCE = 1e-5
MAX_OUTLIER_SHARE, MAX_OUTLIER_DIFFERENCE = 0.1, 0.25
"""This share of the parameters may be off by up to this much. A parameter that was not trained at
all is further off, and if many were not, the norm over all parameters is."""
SMALL_OUTLIER_FACTOR = 5.0
"""Parameters that are off by up to this many times the tolerance do not count as outliers if"""
MAX_OUTLIER_ELEMENTS = 0.01
"""all parameters beyond the tolerance hold at most this share of the elements."""
MIN_COMPARED_NUMBERS = 8
MAX_BASELINE_DIFFERENCE = 0.01
"""A baseline whose two runs differ by more is not repeatable."""


def compare_scripts(
    baseline: ProgramRecord, again: ProgramRecord, candidate: ProgramRecord, rtol: float | None
) -> Results:
    """Compare the candidate with the baseline. `again` is another run of the baseline, which shows
    how far its runs lie apart."""
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
            detail="the scripts call backward on no loss and step no optimizer",
            reasons=("only exit codes were compared",),
        )  # fmt: skip
    own = _distance(_numbers(baseline), _numbers(again))
    if own > MAX_BASELINE_DIFFERENCE:
        return Results(
            status="not compared", method="losses", strength="none",
            detail=f"two runs of the baseline differ by {own:.1%}",
            reasons=("the baseline is not repeatable: give it a seed",),
        )  # fmt: skip
    allowed = max(rtol or DEFAULT_TOLERANCE, 3 * own)
    worst = _distance(_numbers(baseline), _numbers(candidate))
    return _judge(baseline, candidate, worst, allowed, own)


def _judge(
    baseline: ProgramRecord, candidate: ProgramRecord, worst: float, allowed: float, own: float
) -> Results:
    losses, norms = baseline.losses[:COMPARED_LOSSES], baseline.parameter_norms
    compared = len(losses) + len(norms)
    what = f"{len(losses)} losses and {len(norms)} parameters' norms"
    reasons = []
    if compared < MIN_COMPARED_NUMBERS:
        reasons.append(f"only {compared} numbers were compared")
    if allowed > 0.01:
        reasons.append(f"an answer {allowed:.0%} off would pass")
    outliers = _explain_outliers(baseline, candidate, allowed) if worst > allowed else ""
    if outliers:
        reasons.append(outliers)
    status = (
        "bit-identical" if worst == 0
        else "equal" if worst <= max(ROUNDING_TOLERANCE, 3 * own)
        else "within tolerance" if worst <= allowed or outliers
        else "different"
    )  # fmt: skip
    return Results(
        status=status,  # type: ignore[arg-type]
        method=f"losses of {len(losses)} steps, norms of {len(norms)} parameters",
        strength="weak" if reasons else "strong",
        detail=f"{what} differ by {worst:.2g} at most; {allowed:.2g} is allowed, and two "
        f"runs of the baseline differ by {own:.2g}",
        reasons=tuple(reasons),
        compared=compared,
        worst_error=worst if math.isfinite(worst) else None,
        allowed_error=allowed,
    )


def _explain_outliers(baseline: ProgramRecord, candidate: ProgramRecord, allowed: float) -> str:
    """Return a sentence on the few parameters that are off, if everything else agrees; else ""."""
    ours, theirs = baseline.parameter_norms, candidate.parameter_norms
    if len(ours) != len(theirs) or not all(map(math.isfinite, (*ours, *theirs))):
        return ""
    distances = [_distance([a], [b]) for a, b in zip(ours, theirs, strict=True)]
    off = [distance for distance in distances if distance > allowed]
    sizes = baseline.parameter_sizes
    elements = sum(
        size for size, distance in zip(sizes, distances, strict=False) if distance > allowed
    )
    are_small = 0 < elements <= MAX_OUTLIER_ELEMENTS * sum(sizes)
    limit = SMALL_OUTLIER_FACTOR * allowed if are_small else allowed
    outliers = sum(distance > limit for distance in distances)
    losses = _distance(baseline.losses[:COMPARED_LOSSES], candidate.losses[:COMPARED_LOSSES])
    whole = _distance([math.hypot(*ours)], [math.hypot(*theirs)])
    few = outliers <= MAX_OUTLIER_SHARE * len(distances)
    few = few and max(off, default=math.inf) <= MAX_OUTLIER_DIFFERENCE
    if not baseline.losses or not few or max(losses, whole) > allowed:
        return ""
    return (
        f"{len(off)} of {len(distances)} parameters' norms are up to {max(off):.0%} off, as "
        "happens if a gradient is only rounding"
    )


def _numbers(record: ProgramRecord) -> Sequence[float]:
    return (*record.losses[:COMPARED_LOSSES], *record.parameter_norms)


def _distance(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the largest relative difference; infinite if one is NaN or infinite and the other is
    not, or if their number differs."""
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

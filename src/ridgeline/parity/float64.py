"""Errors against a float64 reference, where one is at hand: a candidate may err as the baseline
errs. It adapts to the model, where a fixed tolerance would pass any output or none."""

from math import isfinite

from ridgeline.parity.words import small
from ridgeline.records.parity import Check

K, K_FEW, FEW = 3.0, 10.0, 16
"""Below 16 elements the baseline's own error is one draw of luck."""


def closer(
    candidate_error: float,
    baseline_error: float,
    numel: int,
    *,
    tolerance: float = 1e-5,
    what: str = "outputs",
) -> Check:
    """Errors relative to the reference's norm; `tolerance` is the precision's: 1e-5 for float32,
    1e-3 for float16, 1e-2 for bfloat16."""
    if not isfinite(baseline_error):
        text = f"{what}: the baseline is itself not finite, and says nothing"
        return Check(what="float64", passed=not isfinite(candidate_error), text=text)
    k = K_FEW if numel < FEW else K
    allowed = k * baseline_error + tolerance / 10
    passed = isfinite(candidate_error) and candidate_error <= allowed
    error = small(candidate_error) if isfinite(candidate_error) else "no finite number"
    text = (
        f"{what}: {error} from float64 where the baseline is {small(baseline_error)}, "
        f"allowed {small(allowed)}"
    )
    difference = candidate_error if isfinite(candidate_error) else None
    return Check(what="float64", passed=passed, text=text, difference=difference, allowed=allowed)

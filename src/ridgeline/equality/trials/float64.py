"""The model's errors against a float64 reference, where one is at hand: a candidate may err as the
baseline errs, which adapts to the model, where a fixed tolerance would pass any output or none."""

from collections.abc import Iterator, Sequence
from math import isfinite

from ridgeline.equality.trials.band import Band
from ridgeline.equality.trials.batches import batches
from ridgeline.equality.trials.words import small
from ridgeline.records.parity import Check
from ridgeline.records.trial import Trial

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


def anchored(
    repeats: Sequence[Trial], candidate: Trial, band: Band, jitters: Sequence[Trial] = ()
) -> Iterator[Check]:
    """Of the model's outputs before the first step, and of each step where it does not train."""
    yield from batches(repeats, candidate, band, jitters)
    errors = [trial.float64_error for trial in repeats if trial.float64_error is not None]
    error = candidate.float64_error
    if errors and error is not None:
        # 10: `closer` adds a tenth, and `band.outputs` is what the precision may err by.
        yield closer(error, max(errors), FEW, tolerance=10 * band.outputs)
    elif errors:
        why = next((text for text in candidate.problems if "float64" in text), "")
        text = why or "no float64 reference: the model's outputs were not seen"
        yield Check(what="float64", passed=True, text=text)

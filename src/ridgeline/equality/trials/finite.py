"""Where numbers are not finite. NaN matches nothing but NaN at the same place."""

from collections.abc import Iterator
from math import isfinite, isnan

from ridgeline.equality.trials.words import steps_named
from ridgeline.records.parity import Check
from ridgeline.records.trial import Trial


def finite(baseline: Trial, candidate: Trial) -> tuple[Check, str]:
    """The check, and a note where both are equally not finite."""
    wrong = list(_by_step(baseline, candidate)) + list(_by_name(baseline, candidate))
    if wrong:
        return Check(what="finite", passed=False, text=wrong[0]), ""
    odd = [
        place
        for place, step in enumerate(baseline.watched)
        if _kind(step.loss) not in ("finite", "unseen")
    ]
    if odd:
        text = f"the loss is not finite at {steps_named(odd)}, in both"
        return Check(what="finite", passed=True, text=text), text
    return Check(what="finite", passed=True, text="every number is finite where it was"), ""


def _by_step(baseline: Trial, candidate: Trial) -> Iterator[str]:
    for what in ("loss", "gradient_norm"):
        name = what.replace("_", " ")
        for place, (ours, theirs) in enumerate(
            zip(baseline.watched, candidate.watched, strict=False)
        ):
            one, other = _kind(getattr(ours, what)), _kind(getattr(theirs, what))
            if "unseen" in (one, other) or one == other:
                continue
            yield f"the {name} is {other} at step {place + 1} where the baseline's is {one}"


def _by_name(baseline: Trial, candidate: Trial) -> Iterator[str]:
    found = {tensor.name: tensor for tensor in candidate.tensors}
    for tensor in baseline.tensors:
        other = found.get(tensor.name)
        if other is not None and isfinite(tensor.norm) != isfinite(other.norm):
            yield f"{tensor.name} is {_against(other.norm)}"
    for ours, theirs in zip(baseline.evaluation, candidate.evaluation, strict=False):
        if isfinite(ours) != isfinite(theirs):
            yield f"the evaluation output is {_against(theirs)}"


def _against(value: float) -> str:
    if isfinite(value):
        return "finite where the baseline's is not"
    return "not finite where the baseline's is"


def _kind(value: float | None) -> str:
    if value is None:
        return "unseen"
    if isfinite(value):
        return "finite"
    return "NaN" if isnan(value) else "inf" if value > 0 else "-inf"

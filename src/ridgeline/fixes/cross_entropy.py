"""Replaces torch.nn.functional.cross_entropy by another function in the trial's own process, for
the calls where that is worth it. All other calls run as they did."""

from collections.abc import Callable
from typing import Any

from ridgeline.fixes.program import Program
from ridgeline.harness.capture.places import user_line
from ridgeline.records.facts import Reason

MIN_CLASSES = 8192
"""A loss over fewer classes is left as it is."""
_MAX_LOCATED_CALLS = 8
"""Calls whose line is looked up, which takes a walk over the frames each."""
Compute = Callable[..., Any]
"""(input, target, weight, ignore_index, reduction, label_smoothing)"""


def replaced(
    program: Program,
    fix: str,
    theirs: Any,
    fits: Callable[[Any, Any], bool],
    compute: Compute,
    done: Callable[[Any], Reason],
) -> Any:
    """Return a cross_entropy that uses `compute` where input and target fit, and reports `done` of
    the input for each line that calls it."""
    torch = program.torch
    seen: list[str] = []

    def cross_entropy(
        input: Any, target: Any, weight: Any = None, size_average: Any = None,
        ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:  # fmt: skip
        plain = size_average is None and reduce is None and reduction in ("mean", "sum")
        # Dynamo guards whatever is asked while it compiles, so nothing is asked then.
        worth = plain and not torch.compiler.is_compiling()
        if not (worth and _is_classification(torch, input, target) and fits(input, target)):
            return theirs(
                input, target, weight, size_average, ignore_index, reduce, reduction,
                label_smoothing,
            )  # fmt: skip
        if len(seen) < _MAX_LOCATED_CALLS:
            place = user_line()
            if place not in seen:
                program.did(fix, done(input), place)
            seen.append(place)
        return compute(input, target, weight, ignore_index, reduction, label_smoothing)

    cross_entropy.__doc__ = theirs.__doc__
    return cross_entropy


def _is_classification(torch: Any, input: Any, target: Any) -> bool:
    """Return whether each sample has a row of logits over many classes and the number of a class,
    and the logits are trained."""
    return (
        type(input) is torch.Tensor
        and type(target) is torch.Tensor
        and input.dim() == 2
        and target.dim() == 1
        and input.requires_grad
        and not target.is_floating_point()
        and input.size(0) == target.size(0)
        and input.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and input.size(1) >= MIN_CLASSES
    )

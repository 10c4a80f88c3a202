"""torch.nn.functional.cross_entropy with another function in its place, in the trial's own process:
for the calls that are worth it, the others as they were."""

from collections.abc import Callable
from typing import Any

from ridgeline.fixes.program import Program
from ridgeline.harness.capture.places import here

CLASSES = 8192
_LOOKED = 8
"""Calls whose line is looked for: a walk over the frames each."""
Compute = Callable[..., Any]
"""(input, target, weight, ignore_index, reduction, label_smoothing)"""


def replaced(
    program: Program,
    fix: str,
    theirs: Any,
    fits: Callable[[Any, Any], bool],
    compute: Compute,
    said: Callable[[Any], str],
) -> Any:
    """`said`: what is done with such an input, in words."""
    torch = program.torch
    seen: list[str] = []

    def cross_entropy(
        input: Any, target: Any, weight: Any = None, size_average: Any = None,
        ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:  # fmt: skip
        plain = size_average is None and reduce is None and reduction in ("mean", "sum")
        # What is asked while a program compiles is guarded: nothing is, then.
        worth = plain and not torch.compiler.is_compiling()
        if not (worth and _of_class_numbers(torch, input, target) and fits(input, target)):
            return theirs(
                input, target, weight, size_average, ignore_index, reduce, reduction,
                label_smoothing,
            )  # fmt: skip
        if len(seen) < _LOOKED:
            place = here()
            if place not in seen:
                program.did(fix, said(input), place)
            seen.append(place)
        return compute(input, target, weight, ignore_index, reduction, label_smoothing)

    cross_entropy.__doc__ = theirs.__doc__
    return cross_entropy


def _of_class_numbers(torch: Any, input: Any, target: Any) -> bool:
    """A row of logits over many classes, and a class, for each sample; to be trained."""
    return (
        type(input) is torch.Tensor
        and type(target) is torch.Tensor
        and input.dim() == 2
        and target.dim() == 1
        and input.requires_grad
        and not target.is_floating_point()
        and input.size(0) == target.size(0)
        and input.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and input.size(1) >= CLASSES
    )

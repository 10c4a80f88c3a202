"""The whole step as one CUDA graph."""

import inspect
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.program import OPTIMIZERS, Made, Program
from ridgeline.fixes.step_function import Run, StepFunction
from ridgeline.fixes.step_graph import StepGraph
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

ONLY_A_FUNCTION = (
    "the loop is the program's own: only a step given as a function can be captured whole"
)
NO_GRAPHS = "a CPU has no CUDA graphs"
OWN_GRAPHS = ("compile-reduce-overhead", "compile-max-autotune")
FIX = Fix(
    id="whole-step-graph",
    group="loop",
    title="a CUDA graph of the whole step",
    alters="rounding",
    answers=("cuda-graph-candidate", "small-kernels"),
    why="Forward, backward and update are recorded once and launched as one: the host does nothing "
    "for a step but copy its batch.",
    wrong_when="The step does something in Python besides (a schedule, a counter, a log): only its "
    "work on the device is run again. A learning rate must be a tensor to be changed later. What "
    "the step returns is overwritten by the next.",
)


def reason_to_skip(ground: Ground) -> str:
    return NO_GRAPHS if ground.device != "cuda" else ONLY_A_FUNCTION


def reason_to_skip_function(ground: Ground) -> str:
    """`able`, where the step is a function."""
    if ground.device != "cuda":
        return NO_GRAPHS
    if not ground.trains:
        return "nothing is trained: compile-reduce-overhead captures a model's calls"
    if ground.shapes_change:
        return "shapes change, and a CUDA graph is made for one"
    if ground.flags.gradient_scaler:
        return "a gradient scaler asks at each step whether it overflowed"
    known = [one.name for one in ground.optimizers if one.name in OPTIMIZERS]
    return "" if known else "the optimizer is none of torch's own"


def bound(ground: Ground) -> float | None:
    """The device works without a pause."""
    waits = max(1 - ground.busy, ground.overhead_share) if ground.busy else None
    return speedup_without(waits)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    on_step_function = getattr(program, "on_step_function", None)
    if on_step_function is None:
        program.found_nothing(FIX.id, ONLY_A_FUNCTION)
        return
    if program.device != "cuda":
        program.found_nothing(FIX.id, NO_GRAPHS)
        return
    program.found_nothing(FIX.id, "too few steps were taken to capture one")

    def take(step: StepFunction) -> Run:
        both = [name for name in step.fixes if name in OWN_GRAPHS]
        if both:  # raised, so that neither is taken for the other
            raise RuntimeError("the model has CUDA graphs of its own, which cannot be inside one")
        return StepGraph(torch, step, lambda what: program.did(FIX.id, what))

    on_step_function(FIX.id, lambda made: capturable(torch, made), take)


def capturable(torch: Any, made: Made) -> str:
    """Its counts on the device, where it has any; "" or why it cannot be captured."""
    given = made.arguments
    if made.kind == "SGD":
        return ""  # which counts nothing
    if "capturable" not in inspect.signature(getattr(torch.optim, made.kind)).parameters:
        return f"torch has no {made.kind} that can be captured"
    if given.get("differentiable"):
        return "a differentiable update cannot be captured"
    given["capturable"] = True
    return ""


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    raise EditByHand(
        "make the optimizer with capturable=True; take a few steps on a side stream; then, with "
        "batches copied into tensors that stay: graph = torch.cuda.CUDAGraph(); with "
        "torch.cuda.graph(graph): loss = step(model, optimizer, static_batch); and for each batch "
        "static_batch.copy_(batch); graph.replay()"
    )

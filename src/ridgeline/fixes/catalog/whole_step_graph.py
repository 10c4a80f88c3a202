"""The whole step as one CUDA graph."""

import inspect
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.fix import EditByHand, Fix, Source, speedup_without
from ridgeline.fixes.program import OPTIMIZERS, Made, Program
from ridgeline.fixes.step_graph import Run, StepFunction, StepGraph
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied

FIXES_WITH_GRAPHS = ("compile-reduce-overhead", "compile-max-autotune")
FIX = Fix(
    id="whole-step-graph",
    group="loop",
    title="a CUDA graph of the whole step",
    alters="rounding",
    own_process=True,
    answers=("cuda-graph-candidate", "small-kernels"),
    why="Forward, backward and update are recorded once and launched as one: the host does nothing "
    "for a step but copy its batch.",
    wrong_when="The step does something in Python besides (a schedule, a counter, a log): only its "
    "work on the device is run again. A learning rate must be a tensor to be changed later. What "
    "the step returns is overwritten by the next.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    return because(Skip.NO_GPU if ground.device != "cuda" else Skip.LOOP_NOT_A_FUNCTION)


def reason_to_skip_function(ground: Ground) -> Reason | None:
    """The same as `reason_to_skip` for a step that is given as a function."""
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    if not ground.trains:
        return because(Skip.DOES_NOT_TRAIN)
    if ground.shapes_change:
        return because(Skip.SHAPES_CHANGE)
    if ground.flags.gradient_scaler:
        return because(Skip.SCALER_ASKS_EVERY_STEP)
    known = any(one.name in OPTIMIZERS for one in ground.optimizers)
    return None if known else because(Skip.NO_KNOWN_OPTIMIZER)


def bound(ground: Ground) -> float | None:
    """Return the bound if the device works without a pause."""
    waits = max(1 - ground.busy, ground.overhead_share) if ground.busy else None
    return speedup_without(waits)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    on_step_function = getattr(program, "on_step_function", None)
    if on_step_function is None:
        program.found_nothing(FIX.id, because(Skip.LOOP_NOT_A_FUNCTION))
        return
    if program.device != "cuda":
        program.found_nothing(FIX.id, because(Skip.NO_GPU))
        return
    program.found_nothing(FIX.id, because(Skip.TOO_FEW_STEPS))

    def captured(parameters: int) -> None:
        program.did(FIX.id, because(Done.STEP_CAPTURED, parameters=parameters))

    def take(step: StepFunction) -> Run:
        both = [name for name in step.fixes if name in FIXES_WITH_GRAPHS]
        if both:  # raised, so that neither is taken for the other
            raise RuntimeError("the model has CUDA graphs of its own, which cannot be inside one")
        return StepGraph(torch, step, captured)

    on_step_function(FIX.id, lambda made: make_capturable(torch, made), take)


def make_capturable(torch: Any, made: Made) -> Reason | None:
    """Let the optimizer keep its counts on the device, if it has any. Return why its update cannot
    be captured; None if it can."""
    given = made.arguments
    if made.kind == "SGD":
        return None  # it counts nothing
    if "capturable" not in inspect.signature(getattr(torch.optim, made.kind)).parameters:
        return because(Skip.NOT_CAPTURABLE, optimizer=made.kind)
    if given.get("differentiable"):
        return because(Skip.DIFFERENTIABLE_UPDATE)
    given["capturable"] = True
    return None


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    raise EditByHand(ByHand.STEP_GRAPH)

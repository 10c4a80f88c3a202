"""Puts float16 autocast around the model, with a scaled loss."""

from collections.abc import Mapping

from ridgeline.fixes import precision
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.model_edits import around_call, autocast_header
from ridgeline.fixes.precision import after, bound
from ridgeline.fixes.program import Model, Program
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied
from ridgeline.source.mixed_precision import scaler_edits

__all__ = ["FIX", "after", "apply", "bound", "reason_to_skip", "source_edits"]
FIX = Fix(
    id="autocast-fp16",
    group="model",
    title="float16 autocast with a scaled loss",
    alters="rounding",
    precision="float16",
    slot="precision",
    answers=("autocast-missing", "misaligned-shape"),
    together=("channels-last",),
    why="Products run in float16 on tensor cores. Gradients too small for float16 are kept by "
    "scaling the loss during the backward; before anything reads them they are scaled back.",
    wrong_when="A backward of the program's own is not linear (it clips or rounds gradients), or "
    "activations pass 65,504: those steps are skipped, and counted.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    if ground.capability >= (8, 0):
        return because(Skip.GPU_HAS_BFLOAT16)
    if ground.capability < (7, 0):
        return because(Skip.GPU_LACKS, feature="tensor cores")
    if not ground.trains:
        return because(Skip.DOES_NOT_TRAIN)
    if ground.flags.gradient_scaler:
        return because(Skip.ALREADY_SET, setting="a gradient scaler")
    if len(ground.optimizers) != 1:
        return because(Skip.SEVERAL_OPTIMIZERS, optimizers=len(ground.optimizers))
    return precision.reason_to_skip(ground)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    if program.device != "cuda" and options.get("device") != "cpu":
        program.found_nothing(FIX.id, because(Skip.NO_GPU))
        return

    def skipped(steps: int) -> None:
        program.did(FIX.id, because(Done.STEP_SKIPPED, skipped=steps))

    scaling = precision.Scaling(torch, skipped)

    def cast(model: Model) -> Reason:
        obstacle = precision.cast_obstacle(torch, model)
        obstacle = obstacle or precision.scaling_obstacle(torch, model.module)
        if obstacle is not None:
            return obstacle
        scaling.add(model.module)
        return precision.cast(program, model, FIX.id, "float16")

    program.on_model(FIX.id, cast)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """Return edits for all three places of the loop, and for clipping between them: the cast alone
    would lose gradients."""
    first = applied.targets[0].done.facts
    device, header = str(first["device"]), autocast_header(first)

    def by_hand(cause: Reason) -> EditByHand:
        scale = precision.INITIAL_SCALE
        code = ByHand.GRADIENT_SCALER
        return EditByHand(code, cause=cause, device=device, header=header, init_scale=scale)

    try:
        edits = list(around_call(applied, source, "products in 16 bits"))
    except EditByHand as error:
        raise by_hand(error.reason.cause or error.reason) from error
    for target in applied.targets:
        place, facts = target.place, target.done.facts
        if place is None or place.line is None or "model" not in facts:
            continue
        text, kind = source(place.file) or "", str(facts["model"])
        found = scaler_edits(place.file, text, place.line, device, precision.INITIAL_SCALE, kind)
        if isinstance(found, Reason):
            raise by_hand(found)
        edits += found
    return tuple(dict.fromkeys(edits))

"""Puts bfloat16 autocast around the model."""

from collections.abc import Mapping

from ridgeline.fixes import precision
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.model_edits import around_call
from ridgeline.fixes.precision import after, bound
from ridgeline.fixes.program import Model, Program
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Skip
from ridgeline.records.trial import Applied

__all__ = ["FIX", "after", "apply", "bound", "reason_to_skip", "source_edits"]
FIX = Fix(
    id="autocast",
    group="model",
    title="bfloat16 autocast",
    usual=True,
    alters="rounding",
    precision="bfloat16",
    slot="precision",
    answers=("autocast-missing", "tf32-off", "misaligned-shape"),
    together=("channels-last",),
    why="Products run in bfloat16 and move half the bytes; sums, norms and the "
    "update stay in float32.",
    wrong_when="The loss needs more than three digits of the model's outputs.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device == "cpu" and "bfloat16" in ground.emulated:
        return because(Skip.DTYPE_EMULATED, dtype="bfloat16")
    if not ground.trains and any(module.generates for module in ground.modules):
        return because(Skip.CAST_AT_EACH_TOKEN)
    if ground.device == "cuda" and ground.capability < (8, 0):
        return because(Skip.GPU_LACKS, feature="bfloat16 in its tensor cores")
    return precision.reason_to_skip(ground)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def cast(model: Model) -> Reason:
        obstacle = precision.cast_obstacle(torch, model)
        return obstacle or precision.cast(program, model, FIX.id, "bfloat16")

    program.on_model(FIX.id, cast)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return around_call(applied, source, "products in 16 bits")

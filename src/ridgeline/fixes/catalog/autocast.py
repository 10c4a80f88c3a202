"""bfloat16 for products, around the model."""

from collections.abc import Mapping

from msgspec.structs import replace

from ridgeline.fixes import precision
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Model, Program
from ridgeline.fixes.writing import around_call
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

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
    why="Products run in bfloat16 on tensor cores and move half the bytes; sums, norms and the "
    "update stay in float32.",
    wrong_when="The loss needs more than three digits of the model's outputs.",
)


def reason_to_skip(ground: Ground) -> str:
    if ground.device == "cpu" and "bfloat16" in ground.emulated:
        return "this processor emulates bfloat16: 5 to 20 times slower"
    if ground.device == "cuda" and ground.capability < (8, 0):
        return "this GPU has no bfloat16 in its tensor cores"
    return precision.reason_to_skip(ground)


def bound(ground: Ground) -> float | None:
    return precision.bound(ground)


def after(ground: Ground, options: Mapping[str, str]) -> Ground:
    return replace(ground, in_16_bits=True)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def cast(model: Model) -> str:
        why = precision.resists(torch, model)
        if why:
            program.found_nothing(FIX.id, why)
            return ""
        return precision.cast(program, model, FIX.id, "bfloat16")

    program.on_model(FIX.id, cast)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    device, kind = precision.said(applied.what)
    header = f'torch.autocast("{device}", dtype=torch.bfloat16)'
    return around_call(applied, source, header, "products on tensor cores", kind)

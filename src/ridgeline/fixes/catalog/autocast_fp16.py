"""float16 for products, with a scaled loss, around the model."""

from collections.abc import Mapping

from msgspec.structs import replace

from ridgeline.fixes import precision
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Model, Program
from ridgeline.fixes.scaling import START, Scaling, resists
from ridgeline.fixes.writing import around_call
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied
from ridgeline.source.mixed_precision import scaler_edits

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


def reason_to_skip(ground: Ground) -> str:
    if ground.device != "cuda":
        return "it is for a GPU's tensor cores"
    if ground.capability >= (8, 0):
        return "this GPU has bfloat16, which needs no scaling"
    if ground.capability < (7, 0):
        return "this GPU has no tensor cores"
    if not ground.trains:
        return "nothing trains, so nothing needs scaling"
    if ground.flags.gradient_scaler:
        return "the program scales its gradients already"
    if len(ground.optimizers) != 1:
        seen = len(ground.optimizers) or "no"
        return f"a step that overflows must be skipped, and the program has {seen} optimizers"
    return precision.reason_to_skip(ground)


def bound(ground: Ground) -> float | None:
    return precision.bound(ground)


def after(ground: Ground, options: Mapping[str, str]) -> Ground:
    return replace(ground, in_16_bits=True)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    if program.device != "cuda" and options.get("device") != "cpu":
        program.found_nothing(FIX.id, "it is for a GPU's tensor cores")
        return
    scaling = Scaling(torch, lambda what: program.did(FIX.id, what))

    def cast(model: Model) -> str:
        why = precision.resists(torch, model) or resists(torch, model.module)
        if why:
            program.found_nothing(FIX.id, why)
            return ""
        scaling.add(model.module)
        return precision.cast(program, model, FIX.id, "float16")

    program.on_model(FIX.id, cast)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """Three places of a loop change together, and clipping between them."""
    device, kind = precision.said(applied.what)
    header = f'torch.autocast("{device}", dtype=torch.float16)'
    rest = (
        f'before the loop: scaler = torch.amp.GradScaler("{device}", init_scale={START}); then '
        "scaler.scale(loss).backward(), scaler.unscale_(optimizer) before any clipping, and "
        "scaler.step(optimizer); scaler.update() for optimizer.step()"
    )
    try:
        found = list(around_call(applied, source, header, "products on tensor cores", kind))
    except EditByHand as why:  # the cast alone would lose gradients
        raise EditByHand(f"{why}; {rest}") from why
    for file, line in at(applied):
        edits = scaler_edits(file, source(file) or "", line, device, START, kind)
        if isinstance(edits, str):
            raise EditByHand(f"{edits}; write around the model's call: with {header}:; {rest}")
        found += edits
    return tuple(dict.fromkeys(found))

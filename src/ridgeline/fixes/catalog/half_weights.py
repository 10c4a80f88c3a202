"""The weights of a model that is only used for inference, in bfloat16. Autocast would read all of
them in float32 and cast them at each call, which for a single token is most of the work."""

from collections.abc import Mapping
from typing import Any

from ridgeline.fixes import precision
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.model_edits import Facts, after_made
from ridgeline.fixes.model_forward import tensors_in
from ridgeline.fixes.precision import after, bound
from ridgeline.fixes.program import Model, Program
from ridgeline.harness.capture.places import user_line
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied

__all__ = ["FIX", "after", "apply", "bound", "reason_to_skip", "source_edits"]
DTYPE = "bfloat16"
WHY = "each token reads half the bytes; buffers, such as positions, stay as they are"
__all__ = ["FIX", "after", "apply", "reason_to_skip", "source_edits"]
FIX = Fix(
    id="half-weights",
    group="model",
    title="weights in bfloat16",
    usual=True,
    alters="rounding",
    precision=DTYPE,
    slot="precision",
    answers=("autocast-missing", "tf32-off"),
    why="Writing a token reads every weight once, and takes as long as that. In bfloat16 weights "
    "are half as large, and products run on tensor cores.",
    wrong_when="The model is trained or saved afterwards: the digits that were rounded off are "
    "gone.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.trains:
        return because(Skip.TRAINS)
    if ground.device == "cpu" and DTYPE in ground.emulated:
        return because(Skip.DTYPE_EMULATED, dtype=DTYPE)
    if ground.device == "cuda" and ground.capability < (8, 0):
        return because(Skip.GPU_LACKS, feature="bfloat16 in its tensor cores")
    given = [(module.name, one) for module in ground.modules for one in module.inputs]
    for name, one in given:
        if one.startswith(("float", "bfloat")):
            return because(Skip.FLOATING_INPUTS, model=name)
    return precision.reason_to_skip(ground)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch
    cast: list[Any] = []

    def at_first_call(model: Model) -> Reason | None:
        inner = model.inner
        if any(inner is one for one in cast):
            return None
        obstacle = precision.cast_obstacle(torch, model)
        if obstacle is None and inner.training:
            obstacle = because(Skip.TRAINING_MODE)
        given = tensors_in(torch, (model.args, model.kwargs))
        if obstacle is None and any(one.is_floating_point() for one in given):
            obstacle = because(Skip.FLOATING_INPUTS, model=model.name)
        return obstacle or halve(inner)

    def halve(inner: Any) -> Reason:
        cast.append(inner)
        small = getattr(torch, DTYPE)
        for parameter in inner.parameters():
            if parameter.dtype == torch.float32:
                parameter.data = parameter.data.to(small)
        buffers = any(one.is_floating_point() for one in inner.buffers())
        return because(Done.HALF_WEIGHTS, model=type(inner).__name__, dtype=DTYPE, buffers=buffers)

    def at_generate(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Cast before `generate` asks for the type of the model, to make its cache."""
        try:
            if any(model is one for one in cast) or given.get("inputs_embeds") is not None:
                return
            met = Model(model, (), {}, user_line())
            obstacle = precision.cast_obstacle(torch, met)
            if obstacle is None:
                program.did(FIX.id, halve(model), met.place)
        except Exception as error:
            program.failed(FIX.id, error)

    program.on_model(FIX.id, at_first_call)
    program.before_generate(at_generate)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """Cast after the model is made: as a whole if it has no buffers in floating point."""

    def statement(facts: Facts, name: str) -> str:
        small = f"torch.{facts['dtype']}"
        if not facts["buffers"]:
            return f"{name}.to({small})"
        return (
            f"for parameter in {name}.parameters():\n"
            f"    parameter.data = parameter.data.to({small})"
        )

    return after_made(applied, source, statement, WHY)

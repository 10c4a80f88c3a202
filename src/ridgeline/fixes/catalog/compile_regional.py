"""torch.compile of a model's repeated blocks, each by itself."""

from collections.abc import Mapping

from ridgeline.fixes import compiling
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.program import Model, Program
from ridgeline.fixes.repeated import NONE, repeated
from ridgeline.fixes.writing import after_made
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

FIX = Fix(
    id="compile-regional",
    group="model",
    title="torch.compile of the repeated blocks",
    alters="rounding",
    slot="compile",
    answers=("compile-unpaid", *compiling.ANSWERS),
    slow_start=True,
    spare_beside=("compile", "compile-reduce-overhead", "compile-max-autotune"),
    why="Blocks of one class are compiled once and the code is used for each: a fraction of the "
    "time to compile, most of the gain.",
    wrong_when="Much of the step is outside the blocks, or they differ in their shapes.",
)


def reason_to_skip(ground: Ground) -> str:
    return compiling.reason_to_skip(ground)


def bound(ground: Ground) -> float | None:
    return compiling.bound(ground)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def build(model: Model) -> str:
        inner = model.inner
        why = compiling.resists(torch, inner)
        blocks = [] if why else repeated(torch, inner)
        if not blocks:
            program.found_nothing(FIX.id, why or NONE)
            return ""
        for block in blocks:
            compiling.in_place(torch, block, {})
        kinds = dict.fromkeys(type(block).__name__ for block in blocks)
        return f"{len(blocks)} blocks of {type(inner).__name__} compiled ({', '.join(kinds)})"

    program.on_model(FIX.id, build)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    words = applied.what.split(" ")
    kinds = applied.what.partition("(")[2].rstrip(")").split(", ")
    if len(words) < 4 or not kinds[0]:
        raise EditByHand("call .compile() of each repeated block, after the model is made")
    test = " or ".join(f'type(block).__name__ == "{kind}"' for kind in kinds)
    each = compiling.statement(kinds, "block", {})
    statement = f"for block in {{name}}.modules():\n    if {test}:\n        {each}"
    return compiling.with_torch(
        after_made(applied, source, statement, "blocks of one class compile once", words[3])
    )

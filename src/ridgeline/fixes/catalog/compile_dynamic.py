"""torch.compile with sizes left open."""

from collections.abc import Mapping

from ridgeline.fixes import compiling
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

GIVEN: dict[str, str | bool] = {"dynamic": True}
FIX = Fix(
    id="compile-dynamic",
    group="model",
    title="torch.compile for changing shapes",
    alters="rounding",
    slot="compile",
    answers=("recompiles", *compiling.ANSWERS),
    slow_start=True,
    why="Kernels are made once for every size, instead of again whenever a size is new.",
    wrong_when="Few sizes occur: kernels made for each of them are faster.",
)


def reason_to_skip(ground: Ground) -> str:
    return compiling.reason_to_skip(ground) or (
        "" if ground.shapes_change else "the shapes are the same at every step"
    )


def bound(ground: Ground) -> float | None:
    return compiling.bound(ground)


def apply(program: Program, options: Mapping[str, str]) -> None:
    compiling.whole(program, FIX.id, GIVEN)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return compiling.edits(applied, source, GIVEN, "one set of kernels for every size")

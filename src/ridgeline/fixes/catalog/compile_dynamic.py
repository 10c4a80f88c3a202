"""Compiles the model with torch.compile, sizes left open."""

from collections.abc import Mapping

from ridgeline.fixes import compiling
from ridgeline.fixes.compiling import bound
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Skip
from ridgeline.records.trial import Applied

__all__ = ["FIX", "apply", "bound", "reason_to_skip", "source_edits"]
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


def reason_to_skip(ground: Ground) -> Reason | None:
    same = None if ground.shapes_change else because(Skip.SAME_SHAPES)
    return compiling.reason_to_skip(ground) or same


def apply(program: Program, options: Mapping[str, str]) -> None:
    compiling.compile_whole(program, FIX.id, {"dynamic": True})


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return compiling.compile_edits(applied, source, "one set of kernels for every size")

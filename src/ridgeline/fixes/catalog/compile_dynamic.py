"""Compiles the model with torch.compile, sizes left open."""

from collections.abc import Mapping

from ridgeline.fixes import compiling
from ridgeline.fixes.compiling import bound
from ridgeline.fixes.fix import Fix
from ridgeline.fixes.program import Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Skip

__all__ = ["FIX", "apply", "bound", "reason_to_skip"]
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
    edit_why="one set of kernels for every size",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    same = None if ground.shapes_change else because(Skip.SAME_SHAPES)
    return compiling.reason_to_skip(ground) or same


def apply(program: Program, options: Mapping[str, str]) -> None:
    compiling.compile_whole(program, FIX.id, {"dynamic": True})

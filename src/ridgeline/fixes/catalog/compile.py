"""Compiles the whole model with torch.compile."""

from collections.abc import Mapping

from ridgeline.fixes import compiling
from ridgeline.fixes.compiling import bound, reason_to_skip
from ridgeline.fixes.fix import Fix
from ridgeline.fixes.program import Program

__all__ = ["FIX", "apply", "bound", "reason_to_skip"]
FIX = Fix(
    id="compile",
    group="model",
    title="torch.compile",
    alters="rounding",
    slot="compile",
    answers=compiling.ANSWERS,
    slow_start=True,
    spare_beside=("compile-reduce-overhead", "compile-max-autotune"),
    why="Fuses chains of operators into kernels, forward and backward, and leaves Python out.",
    wrong_when="Shapes change at every step, or the program is too short to pay for compiling.",
    edit_why="fuses operators and leaves Python out",
)


def apply(program: Program, options: Mapping[str, str]) -> None:
    compiling.compile_whole(program, FIX.id, {})

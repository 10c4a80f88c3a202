"""Compiles the model with torch.compile and CUDA graphs."""

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
    id="compile-reduce-overhead",
    group="model",
    title="torch.compile with CUDA graphs",
    alters="rounding",
    slot="compile",
    answers=("cuda-graph-candidate", *compiling.ANSWERS),
    slow_start=True,
    why="The kernels of a pass are launched as one graph: the host's time for each launch goes.",
    wrong_when="The program keeps a tensor the model returned over the next step: its memory is "
    "used again, and torch raises. Graphs keep memory of their own.",
    edit_why="one launch for many kernels",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device == "cuda" and any(module.generates for module in ground.modules):
        return because(Skip.CACHE_GROWS)
    return compiling.reason_to_skip_graphs(ground)


def apply(program: Program, options: Mapping[str, str]) -> None:
    compiling.compile_with_graphs(program, FIX.id, "reduce-overhead")

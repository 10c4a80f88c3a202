"""Compiles the model with torch.compile, which times its choices."""

from collections.abc import Mapping

from ridgeline.fixes import compiling
from ridgeline.fixes.compiling import reason_to_skip_graphs as reason_to_skip
from ridgeline.fixes.fix import Fix
from ridgeline.fixes.program import Program
from ridgeline.records.ground import Ground

WITHOUT_GRAPHS, WITH_GRAPHS = "max-autotune-no-cudagraphs", "max-autotune"
MAX_BUSY_SHARE_FOR_GRAPHS = 0.85
"""A device that works for a smaller share of the step waits for launches: then the mode with CUDA
graphs is tried first."""
__all__ = ["FIX", "apply", "bound", "choices", "reason_to_skip"]
FIX = Fix(
    id="compile-max-autotune",
    group="model",
    title="torch.compile, products chosen by timing",
    alters="rounding",
    slot="compile",
    answers=("misaligned-shape", *compiling.ANSWERS),
    slow_start=True,
    longer=15,  # 240 s against 16 s: GPT-2 on an H200
    why="Besides fusing, products are written in Triton, several ways, and the fastest is kept.",
    wrong_when="The library's own products are the best already, as they are for large sizes: the "
    "minutes of trying are then lost.",
    edit_why="products chosen by timing",
)


def bound(ground: Ground) -> float | None:
    return compiling.bound(ground, other_kernels=True)


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    modes = [WITHOUT_GRAPHS, WITH_GRAPHS]
    if ground.busy < MAX_BUSY_SHARE_FOR_GRAPHS:
        modes.reverse()
    return tuple({"mode": mode} for mode in modes)


def apply(program: Program, options: Mapping[str, str]) -> None:
    mode = options.get("mode", WITHOUT_GRAPHS)
    compiling.compile_with_graphs(program, FIX.id, mode, graphs=mode == WITH_GRAPHS)

"""torch.compile that times its choices."""

from collections.abc import Mapping

from ridgeline.fixes import compiling
from ridgeline.fixes.catalog.compile_reduce_overhead import MARK, WHY_MARK
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Program
from ridgeline.fixes.writing import before_call
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

WITHOUT, WITH = "max-autotune-no-cudagraphs", "max-autotune"
WAITS = 0.85
"""A device that works less of the step waits for launches: then with CUDA graphs first."""
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
)


def reason_to_skip(ground: Ground) -> str:
    if ground.device != "cuda":
        return "it chooses among GPU kernels"
    if ground.shapes_change:
        return "shapes change: every new one would be tuned again"
    return compiling.reason_to_skip(ground)


def bound(ground: Ground) -> float | None:
    return compiling.bound(ground, other_kernels=True)


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    modes = (WITH, WITHOUT) if ground.busy < WAITS else (WITHOUT, WITH)
    return tuple({"mode": mode} for mode in modes)


def apply(program: Program, options: Mapping[str, str]) -> None:
    if program.device != "cuda":
        program.found_nothing(FIX.id, "it chooses among GPU kernels")
        return
    mode = options.get("mode", WITHOUT)
    compiling.whole(program, FIX.id, {"mode": mode})
    if mode == WITH:
        program.on_step(program.torch.compiler.cudagraph_mark_step_begin)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    mode = WITHOUT if WITHOUT in applied.what else WITH
    found = compiling.edits(applied, source, {"mode": mode}, "products chosen by timing")
    if mode == WITHOUT:
        return found
    kind = applied.what.partition(".compile")[0]
    return *found, *before_call(applied, source, MARK, WHY_MARK, kind)

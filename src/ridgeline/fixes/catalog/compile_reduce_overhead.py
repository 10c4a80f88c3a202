"""torch.compile with CUDA graphs."""

from collections.abc import Mapping

from ridgeline.fixes import compiling
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Program
from ridgeline.fixes.writing import before_call
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

GIVEN: dict[str, str | bool] = {"mode": "reduce-overhead"}
MARK = "torch.compiler.cudagraph_mark_step_begin()"
WHY_MARK = "the last step's outputs may be overwritten"
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
)


def reason_to_skip(ground: Ground) -> str:
    if ground.device != "cuda":
        return "a CPU has no CUDA graphs"
    if ground.shapes_change:
        return "shapes change, and a CUDA graph is made for one"
    return compiling.reason_to_skip(ground)


def bound(ground: Ground) -> float | None:
    return compiling.bound(ground)


def apply(program: Program, options: Mapping[str, str]) -> None:
    if program.device != "cuda":
        program.found_nothing(FIX.id, "a CPU has no CUDA graphs")
        return
    compiling.whole(program, FIX.id, GIVEN)
    # Without it a second forward before the backward of the first keeps both outputs' memory.
    program.on_step(program.torch.compiler.cudagraph_mark_step_begin)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    kind = applied.what.partition(".compile")[0]
    return (
        *compiling.edits(applied, source, GIVEN, "one launch for many kernels"),
        *before_call(applied, source, MARK, WHY_MARK, kind),
    )

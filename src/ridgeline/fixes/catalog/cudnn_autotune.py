"""cuDNN tries its algorithms out, and keeps the fastest for each shape."""

from collections.abc import Mapping

from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Edit, Import, Top
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

FIX = Fix(
    id="cudnn-autotune",
    group="global",
    title="cuDNN autotuning",
    alters="rounding",
    answers=("autotune-off",),
    slow_start=True,
    why="For each new shape of a convolution cuDNN times the algorithms it has, instead of "
    "choosing by rule.",
    wrong_when="Shapes change from batch to batch: each new one is timed again. The algorithm may "
    "be another in the next run, and its rounding with it.",
)
SETTING = "torch.backends.cudnn.benchmark = True"


def reason_to_skip(ground: Ground) -> str:
    if ground.device != "cuda":
        return "a CPU has no cuDNN"
    if not ground.convolutions:
        return "no convolution was seen"
    if ground.flags.cudnn_benchmark:
        return "it is on already"
    if ground.flags.cudnn_deterministic or ground.flags.deterministic:
        return "the program asks for deterministic algorithms"
    if ground.shapes_change:
        return "shapes change from step to step: each would be timed anew"
    return ""


def bound(ground: Ground) -> float | None:
    """Return the bound if convolutions become four times as fast. The most that was seen from the
    choice of the algorithm alone is twice as fast."""
    share = ground.products_share
    return speedup_without(0.75 * share if share is not None else None)


def apply(program: Program, options: Mapping[str, str]) -> None:
    flags = program.torch.backends.cudnn
    if program.device != "cuda":
        program.found_nothing(FIX.id, "there is no GPU")
        return
    if flags.benchmark:
        program.found_nothing(FIX.id, "it is on already")
        return
    flags.benchmark = True

    def look() -> None:
        if flags.deterministic or program.torch.are_deterministic_algorithms_enabled():
            flags.benchmark = False
            program.found_nothing(FIX.id, "the program asks for deterministic algorithms")
        elif flags.benchmark:
            program.did(FIX.id, SETTING)
        else:
            program.found_nothing(FIX.id, "the program turns it off itself")

    program.after_first_step(FIX.id, look)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return (
        Import(file="", text="import torch"),
        Top(
            file="", where="after imports", text=SETTING,
            why="cuDNN keeps the fastest algorithm for each shape",
        ),
    )  # fmt: skip

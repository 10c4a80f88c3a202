"""Lets cuDNN try its algorithms out and keep the fastest for each shape."""

from collections.abc import Mapping

from ridgeline.fixes.fix import Fix, speedup_without
from ridgeline.fixes.program import Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip

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
    edit_why="cuDNN keeps the fastest algorithm for each shape",
)
SETTING = "torch.backends.cudnn.benchmark = True"


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    if not ground.convolutions:
        return because(Skip.NO_CONVOLUTION)
    if ground.flags.cudnn_benchmark:
        return because(Skip.ALREADY_SET, setting="cuDNN autotuning")
    if ground.flags.cudnn_deterministic or ground.flags.deterministic:
        return because(Skip.DETERMINISTIC)
    if ground.shapes_change:
        return because(Skip.SHAPES_CHANGE)
    return None


def bound(ground: Ground) -> float | None:
    """Return the bound if convolutions become four times as fast. The most that was seen from the
    choice of the algorithm alone is twice as fast."""
    share = ground.products_share
    return speedup_without(0.75 * share if share is not None else None)


def apply(program: Program, options: Mapping[str, str]) -> None:
    flags = program.torch.backends.cudnn
    if program.device != "cuda":
        program.found_nothing(FIX.id, because(Skip.NO_GPU))
        return
    if flags.benchmark:
        program.found_nothing(FIX.id, because(Skip.ALREADY_SET, setting="cuDNN autotuning"))
        return
    flags.benchmark = True

    def look() -> None:
        if flags.deterministic or program.torch.are_deterministic_algorithms_enabled():
            flags.benchmark = False
            program.found_nothing(FIX.id, because(Skip.DETERMINISTIC))
        elif flags.benchmark:
            program.did(FIX.id, because(Done.SETTING, statement=SETTING))
        else:
            program.found_nothing(FIX.id, because(Skip.PROGRAM_SETS, setting="cuDNN autotuning"))

    program.after_first_step(FIX.id, look)

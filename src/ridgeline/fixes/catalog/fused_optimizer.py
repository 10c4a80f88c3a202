"""One kernel for the whole update."""

from collections.abc import Mapping

from ridgeline.fixes.fix import SAVED_BESIDE_UPDATE_ON_CPU, Fix, speedup_without
from ridgeline.fixes.program import Made, Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
EXCLUDING_OPTIONS = ("foreach", "capturable", "differentiable", "maximize")
"""If one of these is set, the program has chosen its path itself, or torch refuses `fused`."""

FIX = Fix(
    id="fused-optimizer",
    group="optimizer",
    title="a fused optimizer update",
    usual=True,
    alters="rounding",
    slot="update",
    answers=("unfused-optimizer", "small-kernels", "optimizer-state"),
    why="Reads and writes parameters, gradients and moments once, in a kernel or loop of its own, "
    "instead of once for each term of the formula.",
    wrong_when="Gradients are sparse, or the optimizer is one that torch has not fused.",
    edit_why="one pass over parameters and moments",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    names = [one.name for one in ground.optimizers]
    if not names:
        return because(Skip.NO_OPTIMIZER)
    if not any(name in FUSED for name in names):
        return because(Skip.NO_FUSED_OPTIMIZER, optimizer=names[0])
    fused = any(one.options.get("fused") == "True" for one in ground.optimizers)
    return because(Skip.ALREADY_SET, setting="a fused optimizer") if fused else None


def update_share(ground: Ground) -> float | None:
    """Return the largest share of the step that another way to update may save; None if it is not
    known."""
    if ground.optimizer_share is None:
        return None
    beside = SAVED_BESIDE_UPDATE_ON_CPU if ground.device == "cpu" else 1.0
    return beside * ground.optimizer_share


def bound(ground: Ground) -> float | None:
    return speedup_without(update_share(ground))


def apply(program: Program, options: Mapping[str, str]) -> None:
    def fuse(made: Made) -> Reason:
        given = made.arguments
        if made.kind not in FUSED:
            return because(Skip.NO_FUSED_OPTIMIZER, optimizer=made.kind)
        chosen = [name for name in ("fused", *EXCLUDING_OPTIONS) if given.get(name)]
        if chosen:
            return because(Skip.PROGRAM_SETS, setting=f"{chosen[0]}=True")
        given["fused"] = True
        return because(Done.OPTION, call=made.kind, option="fused", value=True)

    program.on_optimizer(FIX.id, fuse)

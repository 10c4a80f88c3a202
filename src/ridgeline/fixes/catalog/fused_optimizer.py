"""One kernel for the whole update."""

from collections.abc import Mapping

from ridgeline.fixes.bounds import SAVED_BESIDE_UPDATE_ON_CPU, speedup_without
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import Made, Program
from ridgeline.fixes.writing import optimizer_keyword
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
OTHER_WAYS = ("foreach", "capturable", "differentiable", "maximize")
"""With any of them set, which path is taken is the program's own choice, or fused refuses."""

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
)


def reason_to_skip(ground: Ground) -> str:
    names = [one.name for one in ground.optimizers]
    if not names:
        return "the program has no optimizer"
    if not any(name in FUSED for name in names):
        return f"torch has no fused {names[0]}"
    told = [one for one in ground.optimizers if one.options.get("fused") == "True"]
    return "it is fused already" if told else ""


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
    def fuse(made: Made) -> str:
        given = made.arguments
        if made.kind not in FUSED:
            program.found_nothing(FIX.id, f"torch has no fused {made.kind}")
            return ""
        chosen = [name for name in ("fused", *OTHER_WAYS) if given.get(name)]
        if chosen:
            program.found_nothing(FIX.id, f"the program sets {chosen[0]}=True itself")
            return ""
        given["fused"] = True
        return f"{made.kind}(fused=True)"

    program.on_optimizer(FIX.id, fuse)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return optimizer_keyword(applied, source, "fused", "one pass over parameters and moments")

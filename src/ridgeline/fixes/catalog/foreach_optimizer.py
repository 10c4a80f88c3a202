"""The update over lists of tensors, where torch would take them one by one."""

from collections.abc import Mapping

from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.catalog.fused_optimizer import FUSED, update_share
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.program import OPTIMIZERS, Made, Program
from ridgeline.fixes.writing import optimizer_keyword
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

FIX = Fix(
    id="foreach-optimizer",
    group="optimizer",
    title="an optimizer update over lists of tensors",
    alters="rounding",
    slot="update",
    answers=("unfused-optimizer", "small-kernels"),
    why="One call for a term of the formula over all parameters, instead of one for each of them: "
    "the way where torch has no fused update.",
    wrong_when="Memory is short: it holds copies as large as the model for a moment. Parameters "
    "are few and large: there is nothing to gain.",
)


def reason_to_skip(ground: Ground) -> str:
    names = [one.name for one in ground.optimizers]
    if not names:
        return "the program has no optimizer"
    known = [one for one in ground.optimizers if one.name in OPTIMIZERS]
    if not known:
        return f"{names[0]} is none of torch's own"
    if all(one.options.get("fused") == "True" for one in known):
        return "it is fused already, which is faster"
    if all(one.options.get("foreach") == "True" for one in known):
        return "it works on lists already"
    if ground.device == "cuda":
        chosen = all(one.options.get("foreach") == "False" for one in known)
        return "the program chose foreach=False" if chosen else "torch does so by itself on a GPU"
    if all(one.name in FUSED for one in known):
        return f"torch has a fused {known[0].name}, which passes over memory once"
    return ""


def bound(ground: Ground) -> float | None:
    return speedup_without(update_share(ground))


def apply(program: Program, options: Mapping[str, str]) -> None:
    def group(made: Made) -> str:
        given = made.arguments
        if given.get("foreach") is not None or given.get("fused") or given.get("differentiable"):
            return ""
        given["foreach"] = True
        return f"{made.kind}(foreach=True)"

    program.on_optimizer(FIX.id, group)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return optimizer_keyword(applied, source, "foreach", "one call a term over all parameters")

"""The update over lists of tensors, where torch would take them one by one."""

from collections.abc import Mapping

from ridgeline.fixes.catalog.fused_optimizer import FUSED, update_share
from ridgeline.fixes.fix import Fix, speedup_without
from ridgeline.fixes.program import OPTIMIZERS, Made, Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip

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
    edit_why="one call a term over all parameters",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    names = [one.name for one in ground.optimizers]
    if not names:
        return because(Skip.NO_OPTIMIZER)
    known = [one for one in ground.optimizers if one.name in OPTIMIZERS]
    if not known:
        return because(Skip.OPTIMIZER_NOT_TORCHS, optimizer=names[0])
    if all(one.options.get("fused") == "True" for one in known):
        return because(Skip.ALREADY_FUSED)
    if all(one.options.get("foreach") == "True" for one in known):
        return because(Skip.ALREADY_SET, setting="foreach=True")
    if ground.device == "cuda":
        chosen = all(one.options.get("foreach") == "False" for one in known)
        program_sets = because(Skip.PROGRAM_SETS, setting="foreach=False")
        return program_sets if chosen else because(Skip.TORCH_DOES_SO)
    if all(one.name in FUSED for one in known):
        return because(Skip.FUSED_IS_BETTER, optimizer=known[0].name)
    return None


def bound(ground: Ground) -> float | None:
    return speedup_without(update_share(ground))


def apply(program: Program, options: Mapping[str, str]) -> None:
    def group(made: Made) -> Reason | None:
        given = made.arguments
        if given.get("foreach") is not None or given.get("fused") or given.get("differentiable"):
            return None
        given["foreach"] = True
        return because(Done.OPTION, call=made.kind, option="foreach", value=True)

    program.on_optimizer(FIX.id, group)

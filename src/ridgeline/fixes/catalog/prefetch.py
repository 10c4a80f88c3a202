"""More batches made ahead."""

from collections.abc import Mapping

from ridgeline.fixes.fix import Fix
from ridgeline.fixes.fix import bound_of_input as bound
from ridgeline.fixes.program import Made, Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip

DEFAULT_BATCHES_AHEAD = 2
"""Batches that a worker makes ahead by default."""
MORE_BATCHES_AHEAD = 4

__all__ = ["FIX", "apply", "bound", "choices", "reason_to_skip"]
FIX = Fix(
    id="prefetch",
    group="loader",
    title="more batches made ahead",
    alters="nothing",
    answers=("loader-starves", "few-workers"),
    together=("loader-workers",),
    why="Batches that take unequal times are evened out by a longer queue.",
    wrong_when="Workers are too slow on average: a longer queue runs empty too. Memory is short: "
    "each worker holds so many batches.",
    edit_why="a longer queue evens out slow batches",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if not ground.loaders:
        return because(Skip.NO_LOADER)
    with_workers = [one for one in ground.loaders if one.workers > 0]
    if not with_workers:
        return because(Skip.NO_WORKERS)
    if all(
        (one.prefetch_factor or DEFAULT_BATCHES_AHEAD) >= MORE_BATCHES_AHEAD for one in with_workers
    ):
        return because(Skip.ALREADY_SET, setting=f"{MORE_BATCHES_AHEAD} batches ahead or more")
    return None


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    return tuple({"factor": str(one)} for one in (MORE_BATCHES_AHEAD, 2 * MORE_BATCHES_AHEAD))


def apply(program: Program, options: Mapping[str, str]) -> None:
    factor = int(options.get("factor") or MORE_BATCHES_AHEAD)

    def lengthen(made: Made) -> Reason | None:
        given = made.arguments
        if not given.get("num_workers", 0):
            return because(Skip.NO_WORKERS)
        if (given.get("prefetch_factor") or DEFAULT_BATCHES_AHEAD) >= factor:
            return None
        given["prefetch_factor"] = factor
        return because(Done.OPTION, call="DataLoader", option="prefetch_factor", value=factor)

    program.on_loader(FIX.id, lengthen)

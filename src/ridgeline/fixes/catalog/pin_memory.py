"""Batches in memory that the GPU reads by itself."""

from collections.abc import Mapping

from msgspec.structs import replace

from ridgeline.fixes import dataset
from ridgeline.fixes.fix import Fix, speedup_without
from ridgeline.fixes.program import Made, Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip

FIX = Fix(
    id="pin-memory",
    group="loader",
    title="pinned memory for batches",
    alters="nothing",
    answers=("unpinned-memory", "pageable-copy", "blocking-copy"),
    together=("non-blocking",),
    why="A copy from ordinary memory goes through a buffer of the driver's, and the program waits "
    "for it; from pinned memory the GPU fetches it alone.",
    wrong_when="Memory is short: pinned pages cannot be moved out. Batches of a class of the "
    "program's own are pinned only where it has a pin_memory method.",
    edit_why="the GPU fetches batches by itself",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    if ground.copies == 0:
        return because(Skip.NO_COPIES)
    if not ground.loaders:
        return because(Skip.NO_LOADER)
    pinned = all(one.pin_memory for one in ground.loaders)
    return because(Skip.ALREADY_SET, setting="pinned memory") if pinned else None


def bound(ground: Ground) -> float | None:
    """Return the bound if copies go and the idle time around them."""
    return speedup_without(1 - ground.busy + ground.copy_share if ground.busy else None)


def after(ground: Ground, options: Mapping[str, str]) -> Ground:
    return replace(ground, loaders=tuple(replace(one, pin_memory=True) for one in ground.loaders))


def apply(program: Program, options: Mapping[str, str]) -> None:
    def pin(made: Made) -> Reason | None:
        given = made.arguments
        if given.get("pin_memory"):
            return None
        if program.device != "cuda":
            return because(Skip.NO_GPU)
        if dataset.on_gpu(program.torch, given.get("dataset")):
            return because(Skip.DATASET_ON_GPU)
        given["pin_memory"] = True
        return because(Done.OPTION, call="DataLoader", option="pin_memory", value=True)

    program.on_loader(FIX.id, pin)

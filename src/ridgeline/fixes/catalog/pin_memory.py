"""Batches in memory that the GPU reads by itself."""

from collections.abc import Mapping

from msgspec.structs import replace

from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.catalog import _dataset as dataset
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Made, Program
from ridgeline.records.edit import Edit, Keyword
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

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
)


def reason_to_skip(ground: Ground) -> str:
    if ground.device != "cuda":
        return "batches stay on the CPU: there is no copy to make faster"
    if ground.copies == 0:
        return "nothing is copied to the GPU in its steps"
    if not ground.loaders:
        return "the program has no DataLoader"
    return "its loaders pin their memory already" if all(_pins(ground)) else ""


def bound(ground: Ground) -> float | None:
    """Without its copies and without the idle time around them."""
    return speedup_without(1 - ground.busy + ground.copy_share if ground.busy else None)


def after(ground: Ground, options: Mapping[str, str]) -> Ground:
    return replace(ground, loaders=tuple(replace(one, pin_memory=True) for one in ground.loaders))


def apply(program: Program, options: Mapping[str, str]) -> None:
    def pin(made: Made) -> str:
        given = made.arguments
        if given.get("pin_memory"):
            return ""
        if program.device != "cuda":
            program.found_nothing(FIX.id, "there is no GPU to copy to")
            return ""
        if dataset.on_gpu(program.torch, given.get("dataset")):
            program.found_nothing(FIX.id, "the dataset's tensors are on the GPU already")
            return ""
        given["pin_memory"] = True
        return "DataLoader(pin_memory=True)"

    program.on_loader(FIX.id, pin)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return tuple(
        Keyword(
            file=file, line=line, call="DataLoader", name="pin_memory", value="True",
            why="the GPU fetches batches by itself",
        )
        for file, line in at(applied)
    )  # fmt: skip


def _pins(ground: Ground) -> list[bool]:
    return [one.pin_memory for one in ground.loaders]

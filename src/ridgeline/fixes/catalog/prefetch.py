"""More batches made ahead."""

from collections.abc import Mapping

from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Made, Program
from ridgeline.records.edit import Edit, Keyword
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

USUAL = 2
"""Batches a worker makes ahead where nothing is said."""
MORE = 4

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
)


def reason_to_skip(ground: Ground) -> str:
    if not ground.loaders:
        return "the program has no DataLoader"
    with_workers = [one for one in ground.loaders if one.workers > 0]
    if not with_workers:
        return "its loaders have no workers that could make batches ahead"
    if all((one.prefetch_factor or USUAL) >= MORE for one in with_workers):
        return f"its workers make {MORE} batches or more ahead already"
    return ""


def bound(ground: Ground) -> float | None:
    return speedup_without(ground.input_share)


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    return tuple({"factor": str(one)} for one in (MORE, 2 * MORE))


def apply(program: Program, options: Mapping[str, str]) -> None:
    factor = int(options.get("factor") or MORE)

    def lengthen(made: Made) -> str:
        given = made.arguments
        if not given.get("num_workers", 0):
            program.found_nothing(FIX.id, "the loader has no workers that could work ahead")
            return ""
        if (given.get("prefetch_factor") or USUAL) >= factor:
            return ""
        given["prefetch_factor"] = factor
        return f"DataLoader(prefetch_factor={factor})"

    program.on_loader(FIX.id, lengthen)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    factor = applied.what.partition("prefetch_factor=")[2].partition(")")[0]
    return tuple(
        Keyword(
            file=file, line=line, call="DataLoader", name="prefetch_factor", value=factor,
            why="a longer queue evens out slow batches",
        )
        for file, line in at(applied)
    )  # fmt: skip

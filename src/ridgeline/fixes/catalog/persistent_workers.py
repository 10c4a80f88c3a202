"""Workers that stay from one epoch to the next.

A loader whose workers stay draws a base seed for them once instead of once an epoch, so that the
sampler's seed of the second epoch is another number and the order another one (losses 6e-2 to 3e-1
apart, measured). In a trial the lost draw is made up for, and the order is the unchanged program's.
"""

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.catalog import _dataset as dataset
from ridgeline.fixes.fix import Fix, Source
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Made, Program
from ridgeline.records.edit import Edit, Keyword
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

FIX = Fix(
    id="persistent-workers",
    group="loader",
    title="workers that stay between epochs",
    alters="nothing",
    answers=("workers-restart", "idle-between-epochs"),
    together=("loader-workers",),
    redraws="from the second epoch on the copy draws other random numbers, another shuffle among "
    "them, just as random: workers that stay take one number fewer an epoch",
    why="Without it each epoch ends its workers, starts new ones and waits for their first "
    "batches.",
    wrong_when="The dataset is changed between epochs, which workers that stay do not see, or two "
    "loops over one loader run at once. From the second epoch on the patched program shuffles in "
    "another order, just as random: a loader with this option draws one number fewer an epoch.",
)
WHY = "workers are started once; from the second epoch on random draws are others"


class Stays(int):
    """True, told from the program's own True. Workers get it as plain True."""

    def __repr__(self) -> str:
        return "True"

    __str__ = __repr__

    def __reduce__(self) -> tuple[type[bool], tuple[bool]]:
        return bool, (True,)


def reason_to_skip(ground: Ground) -> str:
    if not ground.loaders:
        return "the program has no DataLoader"
    with_workers = [one for one in ground.loaders if one.workers > 0]
    if not with_workers:
        return "its loaders have no workers"
    if all(one.persistent_workers for one in with_workers):
        return "its workers stay already"
    again = any(one.epochs > 1 for one in with_workers if not one.persistent_workers)
    return "" if again else "no loader with workers was begun a second time in the steps looked at"


def bound(ground: Ground) -> float | None:
    return speedup_without(ground.input_share)


def apply(program: Program, options: Mapping[str, str]) -> None:
    make_up(program.torch)

    def stay(made: Made) -> str:
        given = made.arguments
        if given.get("persistent_workers"):
            return ""
        if not given.get("num_workers", 0):
            program.found_nothing(FIX.id, "the loader has no workers")
            return ""
        if hasattr(type(given.get("dataset")), "set_epoch"):
            why = "the dataset has set_epoch(), which workers that stay would not see"
            program.found_nothing(FIX.id, why)
            return ""
        given["persistent_workers"] = Stays(1)
        return "DataLoader(persistent_workers=True)"

    program.on_loader(FIX.id, stay)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return tuple(
        Keyword(
            file=file, line=line, call="DataLoader", name="persistent_workers", value="True",
            why=WHY,
        )
        for file, line in at(applied)
    )  # fmt: skip


def make_up(torch: Any) -> None:
    """One integer from the loader's generator at each later epoch, where a loader without it draws
    its base seed: after the last epoch's draws, before the sampler's."""
    module = importlib.import_module("torch.utils.data.dataloader")
    iterator = module._MultiProcessingDataLoaderIter
    theirs = iterator._reset

    @functools.wraps(theirs)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if isinstance(getattr(loader, "persistent_workers", False), Stays):
            now = dataset.state(loader.dataset)
            if first_iter:
                self._as_workers_have_it = now
            else:
                name = dataset.changed(self._as_workers_have_it, now)
                if name:
                    raise RuntimeError(
                        f"the dataset's {name} is changed between epochs, which workers that stay "
                        "do not see"
                    )
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        theirs(self, loader, first_iter)

    iterator._reset = _reset

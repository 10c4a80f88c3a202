"""Workers that stay from one epoch to the next.

A loader whose workers stay draws a base seed for them once instead of once an epoch, so that the
sampler's seed of the second epoch is another number and the order another one (losses 6e-2 to 3e-1
apart, measured). In a trial the lost draw is made up for, and the order is the baseline's.
"""

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes import dataset
from ridgeline.fixes.fix import Fix
from ridgeline.fixes.fix import bound_of_input as bound
from ridgeline.fixes.program import Made, Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip

__all__ = ["FIX", "apply", "bound", "reason_to_skip"]
FIX = Fix(
    id="persistent-workers",
    group="loader",
    title="workers that stay between epochs",
    alters="nothing",
    answers=("workers-restart", "idle-between-epochs"),
    together=("loader-workers",),
    redraws="from the second epoch on the copy draws other random numbers, another shuffle among "
    "them, just as random: workers that stay take one number fewer an epoch",
    own_process=True,
    why="Without it each epoch ends its workers, starts new ones and waits for their first "
    "batches.",
    wrong_when="The dataset is changed between epochs, which workers that stay do not see, or two "
    "loops over one loader run at once. From the second epoch on the patched program shuffles in "
    "another order, just as random: a loader with this option draws one number fewer an epoch.",
    edit_why="workers are started once; from the second epoch on random draws are others",
)


class Stays(int):
    """True, but different from the program's own True. Workers get it as plain True."""

    def __repr__(self) -> str:
        return "True"

    __str__ = __repr__

    def __reduce__(self) -> tuple[type[bool], tuple[bool]]:
        return bool, (True,)


def reason_to_skip(ground: Ground) -> Reason | None:
    if not ground.loaders:
        return because(Skip.NO_LOADER)
    with_workers = [one for one in ground.loaders if one.workers > 0]
    if not with_workers:
        return because(Skip.NO_WORKERS)
    if all(one.persistent_workers for one in with_workers):
        return because(Skip.ALREADY_SET, setting="persistent workers")
    again = any(one.epochs > 1 for one in with_workers if not one.persistent_workers)
    return None if again else because(Skip.WORKERS_START_ONCE)


def apply(program: Program, options: Mapping[str, str]) -> None:
    make_up_draws(program.torch)

    def keep_workers(made: Made) -> Reason | None:
        given = made.arguments
        if given.get("persistent_workers"):
            return None
        if not given.get("num_workers", 0):
            return because(Skip.NO_WORKERS)
        if hasattr(type(given.get("dataset")), "set_epoch"):
            return because(Skip.SET_EPOCH)
        given["persistent_workers"] = Stays(1)
        return because(Done.OPTION, call="DataLoader", option="persistent_workers", value=True)

    program.on_loader(FIX.id, keep_workers)


def make_up_draws(torch: Any) -> None:
    """Draw one integer from the loader's generator at each later epoch, where a loader without the
    option draws its base seed: after the last epoch's draws, before the sampler's."""
    module = importlib.import_module("torch.utils.data.dataloader")
    iterator = module._MultiProcessingDataLoaderIter
    theirs = iterator._reset

    @functools.wraps(theirs)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if isinstance(getattr(loader, "persistent_workers", False), Stays):
            now = dataset.state(loader.dataset)
            if first_iter:
                self._state_in_workers = now
            else:
                name = dataset.changed(self._state_in_workers, now)
                if name:
                    raise RuntimeError(
                        f"the dataset's {name} is changed between epochs, which workers that stay "
                        "do not see"
                    )
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        theirs(self, loader, first_iter)

    iterator._reset = _reset

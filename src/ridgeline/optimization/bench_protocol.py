"""What the search needs of whoever runs trials."""

from typing import Protocol

from ridgeline.fixes.change import of
from ridgeline.harness.trials.arm import Outcome
from ridgeline.records.trial import Asked, Draws

PATIENCE = 4.0
"""Times the unchanged program's own trial: one that takes longer is not worth waiting for."""
COMPILING_S = 240.0
"""And what compiling may take."""
SLOW_START_S = 20.0
"""A trial may take this much longer than twice the unchanged program's trial, for starting its
process. Beyond that it counts as hanging."""
MIN_TRIAL_S = 1.0
"""A process is not started if less time is left: it could not even import torch."""


class Bench(Protocol):
    held_s: float
    """Of the budget, not for the trials that run now: what is kept needs it to be confirmed."""

    def trial(
        self,
        changes: tuple[Asked, ...],
        *,
        jitter: float = 0.0,
        draws: Draws = "own",
        fresh: bool = False,
    ) -> Outcome:
        """`fresh`: run now, whatever is known from before."""

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        """Another script, with nothing put on; it was made to do what these do."""

    def left_s(self) -> float:
        """Of the budget."""

    def cost_s(self, changes: tuple[Asked, ...]) -> float:
        """What one more trial of these would take, as far as is known."""


def compiling_s(changes: tuple[Asked, ...], usually_s: float) -> float:
    """What these would compile for, before they were ever tried."""
    every = [of(one.change).change for one in changes]
    return max((one.longer * usually_s for one in every if one.slow_start), default=0.0)

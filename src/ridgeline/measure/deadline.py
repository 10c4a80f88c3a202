"""The moment by which a call has to be over.

One deadline is made when the call begins and is handed to every stage. Each stage asks how much
time is left. Work that does not fit is not begun, and a child process that runs beyond the deadline
is ended.
"""

import time
from collections.abc import Callable


class BudgetEnded(Exception):
    """The budget ended before a stage was over."""

    def __init__(self, stage: str, about: str = "") -> None:
        super().__init__(stage, about)
        self.stage = stage
        """The stage that was not over, by the name of the request to the child process."""
        self.about = about
        """The variant or the program that the stage was for."""


class Deadline:
    def __init__(
        self,
        budget_s: float,
        *,
        began_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`began_s` is when the call began, by the clock `now`; the default is this moment."""
        self.budget_s = budget_s
        self._now = now
        self._began_s = now() if began_s is None else began_s

    def left_s(self) -> float:
        """Return the seconds left; the number is negative once the deadline has passed."""
        return self.budget_s - self.spent_s()

    def spent_s(self) -> float:
        return self._now() - self._began_s

    def less(self, reserve_s: float) -> "Deadline":
        """Return a deadline for the same call that is `reserve_s` earlier, so that this time is
        left for what comes afterwards."""
        return Deadline(self.budget_s - reserve_s, began_s=self._began_s, now=self._now)

"""The moment by which a call has to be over.

One deadline is made when the call begins and is handed to every stage. Each stage asks what is
left; what does not fit is not begun, and a child process that runs beyond it is ended.
"""

import time
from collections.abc import Callable


class BudgetEnded(Exception):
    """The budget ended before a stage was over."""

    def __init__(self, stage: str, about: str = "") -> None:
        super().__init__(stage, about)
        self.stage = stage
        """What was being done, by the name of the question that was asked."""
        self.about = about
        """The variant or the program it was done for."""


class Deadline:
    def __init__(
        self,
        budget_s: float,
        *,
        began_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`began_s`: when the call began, by the same clock; by default now."""
        self.budget_s = budget_s
        self._now = now
        self._began_s = now() if began_s is None else began_s

    def left_s(self) -> float:
        """Below 0 once it is over."""
        return self.budget_s - self.spent_s()

    def spent_s(self) -> float:
        return self._now() - self._began_s

    def less(self, reserve_s: float) -> "Deadline":
        """The same call, to be over so much earlier: the rest is for what comes after it."""
        return Deadline(self.budget_s - reserve_s, began_s=self._began_s, now=self._now)

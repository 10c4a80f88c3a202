"""What the search needs of whoever runs trials."""

from typing import Protocol

from ridgeline.records.trial import Asked
from ridgeline.trials.arm import Outcome

TIME_OVER = "too little time was left"


class Bench(Protocol):
    def trial(
        self,
        changes: tuple[Asked, ...],
        *,
        jitter: float = 0.0,
        same_random: bool = False,
        fresh: bool = False,
    ) -> Outcome:
        """`fresh`: run now, whatever is known from before."""

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        """Another script, with nothing put on; it was made to do what these do."""

    def left_s(self) -> float:
        """Of the budget."""

    def cost_s(self, changes: tuple[Asked, ...]) -> float:
        """What one more trial of these would take, as far as is known."""

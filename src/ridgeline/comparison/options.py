"""How a comparison is to be made."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from ridgeline.records.comparison import Goal

Say = Callable[[str], None]
"""Progress, in words."""


class Options(Struct, frozen=True, kw_only=True):
    budget_s: float | None = None
    """For warming up and for the rounds; None: `usual_s`, or as long as eight rounds take."""
    usual_s: float = 60.0
    threshold: float = 0.02
    """Differences below this share do not matter."""
    alpha: float = 0.05
    seed: int = 0
    goal: Goal | None = None
    """None: what the files say, else speed."""
    isolate: bool = False
    processes: int = 3
    """Sets of processes with `isolate`."""
    cold: bool = False
    checked: bool = True
    """Whether results are compared and guards looked at."""
    rtol: float | None = None
    """Overrides what the files declare."""
    timeout_s: float | None = None
    """A call that has not come back by then hangs; None: 300 s, for a whole script 30 min."""
    device: str | None = None
    """"cpu" hides the GPUs; a GPU's name picks it."""
    most_rounds: int = 480
    by: Literal["auto", "step", "run"] = "auto"
    """For scripts: time steps or whole runs; "auto" takes steps where all have some."""
    steps: int | None = None
    """For scripts: end each after so many optimizer steps."""
    arguments: tuple[str, ...] = ()
    """For scripts: the same for each."""

    @property
    def budget(self) -> float:
        return self.usual_s if self.budget_s is None else self.budget_s

    def limit_ns(self, left_s: float, round_ns: float) -> float:
        """For the rounds, when this much of the budget is left and a round takes so long."""
        if self.budget_s is not None:
            return 1e9 * left_s
        return max(1e9 * left_s, 1.1 * ROUNDS_WANTED * round_ns)


ROUNDS_WANTED = 8
"""Six are needed for a verdict; nobody who named no budget wants to hear that four fitted in."""

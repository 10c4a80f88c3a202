"""The arms of a comparison, and how each fares before the rounds begin."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from ridgeline.comparison.hosting.answers import Collected, Examined, Opened, Peak, Warmed
from ridgeline.comparison.hosting.pipe import SkippedError
from ridgeline.errors import RidgelineError
from ridgeline.records.comparison import Guard

BASELINE, CONTROL = "baseline", "control"


class ArmFailed(Exception):
    """An arm could not be built, called or timed; `error` says why in a sentence."""

    def __init__(self, arm: str, error: Exception) -> None:
        super().__init__(arm)
        self.arm = arm
        self.error = error


class Disturbing(Exception):
    """Variants that cannot share a process, with what each changes in it."""

    def __init__(self, changes: Sequence[str]) -> None:
        super().__init__(", ".join(changes))
        self.changes = tuple(changes)


class Standing(Struct, kw_only=True):
    """All that is known of one arm."""

    arm: str
    name: str
    host: Any
    """A Host or a RemoteHost."""
    opened: Opened | None = None
    collected: Collected | None = None
    examined: Examined | None = None
    warmed: Warmed | None = None
    peak: Peak | None = None
    floor: Guard | None = None
    recompiles: int = 0

    def open(self, seed: int) -> None:
        """Build it on its host."""
        self.opened = self.ask("open", arm=self.arm, target=self.name, seed=seed)

    def ask(self, method: str, **arguments: Any) -> Any:
        """Ask the arm's host; what goes wrong is this arm's failure."""
        try:
            return getattr(self.host, method)(**arguments)
        except (RidgelineError, SkippedError) as error:
            raise ArmFailed(self.arm, error) from error


def stand(targets: Sequence[str], host: Callable[[str, str], Any]) -> list[Standing]:
    """The arms: the baseline, its control, and each candidate by its place among the targets.
    `host` gives an arm, told by arm and name, its place to run."""
    names = {BASELINE: targets[0], CONTROL: targets[0]}
    names |= {str(at): target for at, target in enumerate(targets) if at}
    return [Standing(arm=arm, name=n, host=host(arm, n)) for arm, n in names.items()]

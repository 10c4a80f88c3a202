"""The options of a comparison, its variants, and what becomes known of each."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.errors import RidgelineError
from ridgeline.measure.clock import Deadline
from ridgeline.records.comparison import Goal, Guard, Results

BASELINE, CONTROL = "baseline", "control"


class Opened(Struct, frozen=True, kw_only=True):
    """Says what a built target declares, and what building it changed."""

    goal: Goal | None
    items: float | None
    rtol: float | None
    has_check: bool
    changed: tuple[str, ...]
    """Process-wide settings that building it changed."""
    device: str


class Collected(Struct, frozen=True, kw_only=True):
    """The first calls: how long each took, and which process-wide settings they changed."""

    call_ns: tuple[float, ...]
    changed: tuple[str, ...]


class Examined(Struct, frozen=True, kw_only=True):
    results: Results
    guards: tuple[Guard, ...]


class Warmed(Struct, frozen=True, kw_only=True):
    block_calls: int
    block_ns: float
    """Wall time of a block."""
    steady: bool
    steady_ns: float
    """Time of a call in steady state."""
    excess_ns: float
    """Time that all calls so far took beyond as many steady ones."""
    calls: int
    events_share: float
    """Device events over wall time: less than 1 if work ran on another stream than the events."""
    clock: str


class Peak(Struct, frozen=True, kw_only=True):
    bytes: int | None
    method: str


class SkippedError(Exception):
    """A workload said that this machine cannot do it (unittest.SkipTest)."""


class VariantFailed(Exception):
    """A variant could not be built, called or timed; `error` has the sentence."""

    def __init__(self, variant: str, error: Exception) -> None:
        super().__init__(variant)
        self.variant = variant
        self.error = error


class Disturbing(Exception):
    """The variants cannot share a process: `changes` names the settings that one changes."""

    def __init__(self, changes: Sequence[str]) -> None:
        super().__init__(", ".join(changes))
        self.changes = tuple(changes)


class Contender(Struct, kw_only=True):
    """A variant on its way through a comparison."""

    variant: str
    """Its key: "baseline", "control", or the place of a candidate among the targets."""
    name: str
    host: Any
    """The place where a variant runs: a Host, a RemoteHost or the runs of a script."""
    opened: Opened | None = None
    collected: Collected | None = None
    examined: Examined | None = None
    warmed: Warmed | None = None
    peak: Peak | None = None
    floor: Guard | None = None
    recompiles: int = 0

    def open(self, seed: int) -> None:
        """Build the variant on its host."""
        self.opened = self.ask("open", variant=self.variant, target=self.name, seed=seed)

    def ask(self, method: str, **arguments: Any) -> Any:
        """Ask the variant's host. An error becomes this variant's failure."""
        try:
            return self.host.ask(method, **arguments)
        except (RidgelineError, SkippedError) as error:
            raise VariantFailed(self.variant, error) from error


def stand(targets: Sequence[str], host: Callable[[str, str], Any]) -> list[Contender]:
    """Return the baseline, its control, and each candidate. `host` returns where a variant runs,
    given its key and name."""
    names = {BASELINE: targets[0], CONTROL: targets[0]}
    names |= {str(i): target for i, target in enumerate(targets) if i}
    return [
        Contender(variant=variant, name=n, host=host(variant, n)) for variant, n in names.items()
    ]


Say = Callable[[str], None]
"""Shows progress, a sentence at a time."""


class Options(Struct, frozen=True, kw_only=True):
    budget_s: float | None = None
    """Time limit of the whole call if there is a `deadline`, else of the warm-up and the rounds.
    None stands for `usual_s`, or as long as eight rounds take."""
    deadline: Deadline | None = None
    """When the whole call has to be over. None if no budget was given, or if the variants run in
    the caller's own process, which cannot be ended."""
    usual_s: float = 60.0
    threshold: float = 0.02
    """Differences below this share do not matter."""
    alpha: float = 0.05
    seed: int = 0
    goal: Goal | None = None
    """None: the goal that the files declare, else speed."""
    isolate: bool = False
    processes: int = 3
    """Sets of processes with `isolate`."""
    cold: bool = False
    checked: bool = True
    """Whether results are compared and guards looked at."""
    rtol: float | None = None
    """The relative error allowed, in place of what the files declare."""
    timeout_s: float | None = None
    """Time limit of a call, after which it counts as hanging; None: 300 s, for a whole script 30
    min."""
    device: str | None = None
    """"cpu" hides the GPUs; "cuda:1" shows only that one."""
    max_rounds: int = 480
    by: Literal["auto", "step", "run"] = "auto"
    """Whether steps or whole runs of scripts are timed; "auto" times steps if all have some."""
    steps: int | None = None
    """The number of optimizer steps after which each run of a script is ended."""
    arguments: tuple[str, ...] = ()
    """The command-line arguments of each script."""

    @property
    def budget(self) -> float:
        return self.usual_s if self.budget_s is None else self.budget_s

    def started(self, began_s: float | None = None) -> "Options":
        """Return these options with a deadline, for a call that begins now or began at `began_s`.

        The options stay as they are if there is no budget."""
        if self.budget_s is None:
            return self
        return replace(self, deadline=Deadline(self.budget_s, began_s=began_s))

    def left_s(self, spent_s: float) -> float:
        """Return the seconds left of the budget. Without a deadline the budget is for the warm-up
        and the rounds alone, of which `spent_s` are over."""
        return self.budget - spent_s if self.deadline is None else self.deadline.left_s()

    def limit_ns(self, left_s: float, round_ns: float) -> float:
        """Return the time limit of the rounds, given what is left of the budget and how long a
        round takes."""
        if self.budget_s is not None:
            return 1e9 * left_s
        return max(1e9 * left_s, 1.1 * MIN_DEFAULT_ROUNDS * round_ns)


MIN_DEFAULT_ROUNDS = 8
"""Rounds that are run if no budget was given, however long they take: a verdict needs six."""

"""The variants of a comparison, and how each fares before the rounds begin."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.errors import RidgelineError
from ridgeline.measure.deadline import Deadline
from ridgeline.records.comparison import Goal, Guard, Results

BASELINE, CONTROL = "baseline", "control"


class Opened(Struct, frozen=True, kw_only=True):
    """A target, built."""

    goal: Goal | None
    items: float | None
    rtol: float | None
    has_check: bool
    changed: tuple[str, ...]
    """Process-wide settings that building it changed."""
    device: str


class Collected(Struct, frozen=True, kw_only=True):
    call_ns: tuple[float, ...]
    changed: tuple[str, ...]


class Examined(Struct, frozen=True, kw_only=True):
    results: Results
    guards: tuple[Guard, ...]


class Warmed(Struct, frozen=True, kw_only=True):
    block_calls: int
    block_ns: float
    """What a block takes by the wall clock."""
    steady: bool
    steady_ns: float
    """A call's time at the end."""
    excess_ns: float
    """What all calls so far took beyond as many steady ones."""
    calls: int
    events_share: float
    """Device events over wall time: under 1 where work escaped the events' stream."""
    clock: str


class Peak(Struct, frozen=True, kw_only=True):
    bytes: int | None
    method: str


class SkippedError(Exception):
    """A workload said that this machine cannot do it (unittest.SkipTest)."""


class VariantFailed(Exception):
    """A variant could not be built, called or timed; `error` says why in a sentence."""

    def __init__(self, variant: str, error: Exception) -> None:
        super().__init__(variant)
        self.variant = variant
        self.error = error


class Disturbing(Exception):
    """Variants that cannot share a process, with what each changes in it."""

    def __init__(self, changes: Sequence[str]) -> None:
        super().__init__(", ".join(changes))
        self.changes = tuple(changes)


class Contender(Struct, kw_only=True):
    """All that is known of one variant."""

    variant: str
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
        self.opened = self.ask("open", variant=self.variant, target=self.name, seed=seed)

    def ask(self, method: str, **arguments: Any) -> Any:
        """Ask the variant's host; what goes wrong is this variant's failure."""
        try:
            return self.host.ask(method, **arguments)
        except (RidgelineError, SkippedError) as error:
            raise VariantFailed(self.variant, error) from error


def stand(targets: Sequence[str], host: Callable[[str, str], Any]) -> list[Contender]:
    """The variants: the baseline, its control, and each candidate by its place among the targets.
    `host` gives a variant, told by variant and name, its place to run."""
    names = {BASELINE: targets[0], CONTROL: targets[0]}
    names |= {str(at): target for at, target in enumerate(targets) if at}
    return [
        Contender(variant=variant, name=n, host=host(variant, n)) for variant, n in names.items()
    ]


Say = Callable[[str], None]
"""Progress, in words."""


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
        """For the rounds, when this much of the budget is left and a round takes so long."""
        if self.budget_s is not None:
            return 1e9 * left_s
        return max(1e9 * left_s, 1.1 * ROUNDS_WANTED * round_ns)


ROUNDS_WANTED = 8
"""Six are needed for a verdict; nobody who named no budget wants to hear that four fitted in."""

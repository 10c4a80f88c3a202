"""Says what the process of a race is asked to measure, and what it answers. One request is measured
at a time; blocks are answered one by one."""

from msgspec import Struct

from ridgeline.records.trial import Applied, Asked, FunctionEdit, NotApplied


class RacePlan(Struct, frozen=True, kw_only=True):
    """Says what holds for a whole race."""

    seed: int = 0
    trains: bool = True
    functions: tuple[FunctionEdit, ...] = ()


class RaceRequest(Struct, frozen=True, kw_only=True):
    """Says which sets of fixes are to be timed against each other. Each is timed in a block of
    steps once a round, in shuffled order."""

    number: int
    sets: tuple[tuple[Asked, ...], ...] = ()
    """Empty: the program waits for the next request."""
    rounds: int = 1
    block_steps: int = 2
    set_up_steps: int = 3
    """Steps that a set takes at least when it is applied for the first time. They are not timed."""
    skipped_steps: int = 1
    """Steps after a switch that are not timed: they pay for caches, allocator and guards."""
    end: bool = False
    """Whether the process is to end."""


class RaceBlock(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Consecutive steps of the program under one set of fixes."""

    request: int
    member: int
    """Index of the set in the request."""
    round: int
    steps: int
    wall_ns: int
    """The time by the device's clock if the program works on a GPU, else by the host's."""
    queued_ns: int = 0
    """Time in which the thread that takes the steps could have run, but had no processor."""
    workers: int = 0
    """Worker processes of the loader that fed these steps."""
    input_ns: int = 0
    """Time in which the program waited for its loader."""
    peak_bytes: int = 0
    """Peak of the device's memory; 0 on a CPU."""
    compile_ns: int = 0
    restarts: int = 0
    """How often a loader began anew, and started its workers, in these steps."""


class RaceMember(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says what became of a set of fixes when it was applied for the first time."""

    request: int
    member: int
    applied: tuple[Applied, ...] = ()
    not_applied: tuple[NotApplied, ...] = ()
    compile_s: float = 0.0
    setup_s: float = 0.0
    """Time of the steps until it was ready to be timed."""
    steps: int = 0
    """How many steps the process had taken by then."""
    began: bool = False
    """Whether this is written as the set is about to be applied: if the process dies, it is why."""
    error: str = ""
    """What the program raised under the set, which is off for good then."""


class RaceMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that the process of a race writes."""

    block: RaceBlock | None = None
    member: RaceMember | None = None
    ready: bool = False
    """Whether the program takes steady steps, and waits for a request."""
    step_ns: int = 0
    """Time of the last step before that."""
    measured: int = 0
    """Number of a request that has been measured; 0: none."""
    fault: str = ""

"""A workload: a call that is timed, and what its file declares about it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from ridgeline.errors import UsageError
from ridgeline.records.comparison import Goal

Check = Callable[[Any, Any], Any]
"""check(baseline_output, candidate_output): False, a sentence or an AssertionError rejects."""


class Declared(Struct, frozen=True, kw_only=True):
    """Says what a file may declare about its workload, by names at its top level."""

    goal: Goal | None = None
    """GOAL = "memory": what is to become smaller."""
    items: float | None = None
    """ITEMS = 32: samples or tokens a call handles."""
    rtol: float | None = None
    """TOLERANCE = 1e-2: how far a candidate's output may lie from the reference, relative to its
    norm; for a candidate that changes precision on purpose."""
    check: Check | None = None
    """def check(baseline_output, candidate_output): the file's own idea of equal."""


class Workload(Struct, kw_only=True, eq=False):
    """A variant that is ready to be called."""

    name: str
    function: Callable[..., Any]
    """What is timed; takes `args` and `kwargs`."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    rebuild: Callable[[], "Workload"] | None = None
    """Makes a fresh workload from the same source; None if there is no factory to call again."""
    declared: Declared = Declared()
    first_call_ns: float | None = None
    """Time of the call that was needed to find out what the target is; None if none was."""

    calls_made: int = 0

    def __call__(self) -> Any:
        result = self.function(*self.args, **self.kwargs)
        self.calls_made += 1
        return result

    @property
    def timed(self) -> Callable[[], Any]:
        """What the clock calls: the function itself if it takes no inputs."""
        if not self.takes_inputs:
            return self.function
        return partial(self.function, *self.args, **self.kwargs)

    @property
    def takes_inputs(self) -> bool:
        return bool(self.args or self.kwargs)


def unpacked(built: Any) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None:
    """Return the function and inputs that a factory has built; None if it built something else."""
    if callable(built):
        return built, (), {}
    if isinstance(built, tuple) and len(built) == 2 and callable(built[0]):
        function, inputs = built
        if isinstance(inputs, Mapping):
            return function, (), dict(inputs)
        if isinstance(inputs, list | tuple):
            return function, tuple(inputs), {}
        return function, (inputs,), {}
    return None


GOALS: tuple[Goal, ...] = ("speed", "memory", "throughput")


def declared_in(names: Mapping[str, Any], where: str) -> Declared:
    """Return what a module declares. Raise UsageError for a value that makes no sense."""
    goal, items, rtol, check = (names.get(n) for n in ("GOAL", "ITEMS", "TOLERANCE", "check"))
    if goal is not None and goal not in GOALS:
        raise UsageError(f"{where}: GOAL is {goal!r}", f"it may be one of: {', '.join(GOALS)}")
    for name, value in (("ITEMS", items), ("TOLERANCE", rtol)):
        if value is not None and not (is_number(value) and value > 0):
            raise UsageError(f"{where}: {name} is {value!r}, not a number above 0")
    if check is not None and not callable(check):
        raise UsageError(f"{where}: check is {check!r}, not a function of two outputs")
    return Declared(goal=goal, items=items, rtol=rtol, check=check)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""What a host says about a workload: records that can travel between processes."""

from typing import Any

from msgspec import Struct

from ridgeline import errors
from ridgeline.records.comparison import Goal, Guard, Results


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


class Trouble(Struct, frozen=True):
    """A RidgelineError, to be raised at the other end."""

    kind: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: errors.RidgelineError) -> "Trouble":
        return cls(type(error).__name__, error.message, error.hint)

    def raised(self) -> errors.RidgelineError:
        kind = getattr(errors, self.kind, errors.RidgelineError)
        error = kind(self.message, self.hint)
        assert isinstance(error, errors.RidgelineError)
        return error


class Question(Struct, frozen=True, kw_only=True):
    number: int
    method: str
    arguments: dict[str, Any]


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    number: int = 0
    value: Any = None
    error: Trouble | None = None
    skipped: str | None = None
    alive: bool = False
    """No answer yet, but calls came back since the last one."""

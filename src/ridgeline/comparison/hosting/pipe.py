"""What travels between a comparison and the processes its workloads live in: JSON, a line each."""

from typing import Any

from msgspec import Struct

from ridgeline import errors


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

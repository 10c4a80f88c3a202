"""The session of this process, if there is one."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.harness.capture.session import Session
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

session: "Session | None" = None
_following = False


def follow_forks() -> None:
    """In a child of the program the session goes quiet. Asked once: it cannot be taken back."""
    global _following
    if not _following:
        os.register_at_fork(after_in_child=_forked)
        _following = True


def _forked() -> None:
    if session is not None:
        session.forked()


_F = TypeVar("_F", bound=Callable[..., Any])


class Listener(Protocol):
    def user_ended_step(self) -> None: ...
    def region_begins(self, name: str) -> Any: ...
    def region_ends(self, token: Any) -> None: ...


listener: Listener | None = None
"""The run in progress."""


def step() -> None:
    """An iteration of yours ends here. Once said, nothing else is taken for a step's end."""
    if listener is not None:
        listener.user_ended_step()


class region(contextlib.ContextDecorator):
    """A part of a step with a name of yours: `with ridgeline.region("augment"): …`, or a decorator.

    Its time is in steps.jsonl and in the report, and it stands in the trace under its name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tokens: list[Any] = []

    def __enter__(self) -> "region":
        if listener is not None:
            self._tokens.append(listener.region_begins(self._name))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._tokens:
            token = self._tokens.pop()
            if listener is not None:
                listener.region_ends(token)

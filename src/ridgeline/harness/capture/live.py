"""The run in progress in this process, and what the user's program may tell it: `step` and
`region`."""

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from ridgeline.harness.capture.session import Session

session: "Session | None" = None
"""The session of this process, if there is one."""
_follows_forks = False


def follow_forks() -> None:
    """Make the session note nothing more in forked children of the program. The hook is registered
    once, because it cannot be removed."""
    global _follows_forks
    if not _follows_forks:
        os.register_at_fork(after_in_child=_forked)
        _follows_forks = True


def _forked() -> None:
    if session is not None:
        session.forked()


_F = TypeVar("_F", bound=Callable[..., Any])


class Listener(Protocol):
    def user_ended_step(self) -> None: ...
    def region_begins(self, name: str) -> Any: ...
    def region_ends(self, token: Any) -> None: ...


listener: Listener | None = None
"""The session that `step` and `region` tell; None once the windows are over."""


def step() -> None:
    """Mark the end of an iteration of your program. After the first call nothing else ends a
    step."""
    if listener is not None:
        listener.user_ended_step()


class region(contextlib.ContextDecorator):
    """Name a part of a step: `with ridgeline.region("augment"): …`, or use it as a decorator.

    Its time is in steps.jsonl and in the report, and the trace shows it under its name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tokens: list[Any] = []

    def __enter__(self) -> "region":
        if listener is not None:
            self._tokens.append(listener.region_begins(self._name))
        return self

    def __exit__(self, *error: object) -> None:
        if self._tokens:
            token = self._tokens.pop()
            if listener is not None:
                listener.region_ends(token)

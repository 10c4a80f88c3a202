"""A step given as a function, as a change sees it. Only such a step can be captured whole: the loop
of a script is the program's own."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

Run = Callable[[Any], Any]
"""One step, of one batch."""


class StepFunction(Protocol):
    model: Any
    optimizer: Any
    fixes: tuple[str, ...]
    """All that are on."""

    def run(self, batch: Any) -> Any:
        """The user's own function, with what was put on."""

    def recorded(self) -> AbstractContextManager[None]:
        """A step inside it is not looked at, but remembered: it runs later, or must not be waited
        for."""

    def replayed(self) -> None:
        """What was remembered has run: its results can be read."""

    def bindings(self) -> Mapping[str, Any]:
        """What the names the step can reach stand for."""

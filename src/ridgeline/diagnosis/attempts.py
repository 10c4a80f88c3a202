"""Parts of a conclusion, each tried alone: one that fails costs itself and leaves a sentence."""

from collections.abc import Callable
from typing import TypeVar

from ridgeline.errors import RidgelineError

T = TypeVar("T")


class Attempts:
    """Remembers why parts are missing."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def part(self, what: str, do: Callable[[], T]) -> T | None:
        """What `do` gives; None where it fails, whatever the reason: files of a killed program
        can be damaged in ways nobody has seen, and the rest of the run must still be told."""
        try:
            return do()
        except RidgelineError as error:
            self.failures.append(f"{what} could not be read: {error.message}")
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            said = f"{type(error).__name__}: {why}" if why else type(error).__name__
            self.failures.append(f"{what} failed ({said})")
        return None

"""A program whose seams are moments of a test: handlers are kept and called by hand, and no class
of torch's is changed."""

from collections.abc import Callable
from typing import Any

import torch

from ridgeline.fixes.program import Made, Program


class Here(Program):
    def __init__(self, device: str = "cpu") -> None:
        super().__init__(torch)
        self.device = device

    def on_loader(self, fix: str, do: Callable[[Made], str]) -> None:
        self._on_loader.append((fix, do))
        self._not.setdefault(fix, "the program made no DataLoader")

    def on_optimizer(self, fix: str, do: Callable[[Made], str]) -> None:
        self._on_optimizer.append((fix, do))
        self._not.setdefault(fix, "the program made none of torch's own optimizers")

    def makes(self, kind: str = "DataLoader", place: str = "train.py:1", **given: Any) -> Any:
        """The arguments as the changes leave them."""
        made = Made(kind, given, place)
        doing = self._on_loader if kind == "DataLoader" else self._on_optimizer
        for fix, do in doing:
            self._try(fix, do, made, place)
        return made.arguments

    @property
    def done(self) -> list[str]:
        return [one.what for one in self.outcome()[0]]

    @property
    def why_not(self) -> str:
        return "; ".join(one.why for one in self.outcome()[1])


def no_source(file: str) -> str | None:
    """Of changes whose edits need no look at the source."""
    return None

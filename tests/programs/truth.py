"""What a program knows of itself: counted beside its own loop, and printed at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Truth:
    """Counts of the step at hand, closed by `step`; the last line printed is all of them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, object]] = []
        self.evaluations = 0
        self._clear()

    def _clear(self) -> None:
        self.forwards = self.backwards = self.samples = self.optimizer_steps = 0
        self.losses: list[tuple[Tensor, int]] = []

    def forward(self, samples: int = 0, calls: int = 1) -> None:
        """An outermost call that trains; `samples` only where it is the batch that arrived."""
        self.forwards += calls
        self.samples += samples

    def evaluation(self) -> None:
        self.evaluations += 1

    def backward(self, loss: Tensor, times: int = 1) -> None:
        """`loss` times `times` is what a person would print of it."""
        self.backwards += 1
        self.losses.append((loss.detach().clone(), times))

    def step(self, optimizers: int = 1, skipped: bool = False) -> None:
        """The iteration is over. Of several losses the last counts."""
        loss, times = self.losses[-1] if self.losses else (None, 1)
        self.steps.append(
            {
                "forwards": self.forwards,
                "backwards": self.backwards,
                "optimizer_steps": self.optimizer_steps + (0 if skipped else optimizers),
                "samples": self.samples,
                "loss": loss.item() * times if loss is not None else None,
                "skipped": skipped,
            }
        )
        self._clear()

    def tell(self, **more: object) -> None:
        print(json.dumps({"steps": self.steps, "evaluations": self.evaluations, **more}))


def told(output: str) -> dict[str, object]:
    """What a program printed last, read back."""
    lines: Sequence[str] = output.strip().splitlines()
    found: dict[str, object] = json.loads(lines[-1])
    return found

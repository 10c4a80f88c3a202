"""The steps after the watched ones, which are timed: what can be told of them at no cost to them,
so that a program that does less from then on is seen to."""

import hashlib
import weakref
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from ridgeline.harness.trials import prints
from ridgeline.harness.trials.aside import Here
from ridgeline.harness.trials.tensors import MOST_TENSORS
from ridgeline.records.run import Step
from ridgeline.records.trial import LaterStep, Trial


class Later:
    """One for the trial."""

    def __init__(self, torch: Any, aside: Here) -> None:
        self._torch = torch
        self._aside = aside
        self._models: list[Callable[[], Any]] = []
        """Weakly: a program may be done with one."""
        self._was: dict[str, bytes] = {}
        self._handed = 0
        self.handed: dict[int, int] = {}
        """Elements given to outermost modules, by step."""
        self.counted = True
        """False: steps are replayed, and call nothing."""
        self.looked: int | None = None
        """The step that began when the parameters were looked at."""

    def begin(self, models: Sequence[Any]) -> None:
        """The last watched step has ended."""
        self._models = [weakref.ref(model) for model in models]

    def look(self, step: int) -> None:
        """One step is left, which is not timed: whether they still move."""
        self.looked = step
        self._was = self._aside.ask(self._now)

    def called(self, args: Any, kwargs: Any) -> None:
        given = prints.tensors_in(self._torch, (args, kwargs))
        self._handed += sum(tensor.numel() for tensor in given)

    def step_ended(self, index: int) -> None:
        self.handed[index], self._handed = self._handed, 0

    def stood(self, steps: int) -> tuple[str, ...]:
        """Parameters that the last step has left where they were, to the bit. `steps`: taken."""
        if self.looked is None or steps <= self.looked:
            return ()
        now = self._aside.ask(self._now)
        return tuple(name for name, was in self._was.items() if now.get(name) == was)

    def _now(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for number, model in enumerate((one() for one in self._models), 1):
            if model is None:
                continue
            for name, tensor in prints.named_parameters(model, number):
                if len(found) < MOST_TENSORS:
                    values = prints.sampled(self._torch, tensor).numpy()
                    found[name] = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        return found


def is_timed(step: Step, trial: Trial) -> bool:
    last = trial.looked is not None and step.index >= trial.looked
    return not step.compile_ns and not last


def later_steps(trial: Trial, steps: Sequence[Step]) -> tuple[LaterStep, ...]:
    """`steps`: those that count, from the first one on."""
    if not trial.handed:
        return ()
    watched = len(trial.watched)
    scale = _scale(trial, steps[:watched])
    return tuple(
        LaterStep(
            number=watched + place,
            loss=step.loss / scale if step.loss is not None else None,
            broke=step.loss_broke,
            forwards=step.forwards,
            backwards=step.backwards,
            updates=step.optimizer_steps,
            handed=trial.handed.get(step.index),
        )
        for place, step in enumerate(steps[watched:])
        if step.detailed
    )


def _scale(trial: Trial, steps: Sequence[Step]) -> float:
    """By which a gradient scaler makes the losses that run backward larger: the watched ones are
    noted without it."""
    both = zip(trial.watched, steps, strict=False)
    found = [step.loss / one.loss for one, step in both if one.loss and step.loss]
    return median(found) if found else 1.0

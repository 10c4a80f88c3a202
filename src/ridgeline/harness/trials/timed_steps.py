"""The steps after the watched ones, which are timed: what can be told of them at no cost to them,
so that a program that does less from then on is seen to."""

import hashlib
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from time import perf_counter_ns
from typing import Any

from ridgeline.harness.trials import tensor_prints as prints
from ridgeline.harness.trials.tensor_prints import MOST_TENSORS
from ridgeline.harness.usercode.forked_work import Here
from ridgeline.machine import nvml
from ridgeline.machine.telemetry import PackageEnergy
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


LEAST_NS = {"cuda": 1_000_000_000, "cpu": 50_000_000}
"""NVML's counter moves every 20 to 100 ms, RAPL's every one: a shorter time is off by over 10 %
on a GPU. A lag of the device behind the host is the same at both ends, and cancels."""
BETWEEN_NS = 500_000_000
"""A reading takes up to 0.1 ms; the program may end before its steps are taken."""


class Meter:
    """One for the trial. `ready` before anything is timed: NVML takes 10 ms and more to start."""

    def __init__(self, torch: Any, joules: Callable[[], float | None] | None = None) -> None:
        self._torch = torch
        self._joules = joules
        self._kind = "cpu"
        self._open = ExitStack()
        self._first: tuple[int, int, float] | None = None
        self._last: tuple[int, int, float] | None = None

    def ready(self) -> None:
        if self._joules is None:
            cuda = self._torch.cuda.is_initialized()
            self._kind = "cuda" if cuda else "cpu"
            self._joules = self._of_device() if cuda else PackageEnergy().joules

    def begin(self, step: int, now_ns: int | None = None) -> None:
        """`step` is the first that is timed."""
        self.ready()
        self._first = self._last = self._read(step, now_ns)

    def ended(self, step: int, last: bool, now_ns: int | None = None) -> None:
        """The steps before `step` have ended."""
        if self._last is None:
            return
        now = perf_counter_ns() if now_ns is None else now_ns
        if last or now - self._last[1] >= BETWEEN_NS:
            self._last = self._read(step, now)

    @property
    def joules(self) -> float | None:
        """Of a step, on average."""
        if self._first is None or self._last is None:
            return None
        steps, passed, spent = (self._last[at] - self._first[at] for at in range(3))
        if steps < 1 or passed < LEAST_NS[self._kind] or spent <= 0:
            return None
        return spent / steps

    def close(self) -> None:
        self._open.close()

    def _read(self, step: int, now_ns: int | None) -> tuple[int, int, float] | None:
        found = self._joules() if self._joules is not None else None
        now = perf_counter_ns() if now_ns is None else now_ns
        return None if found is None else (step, now, found)

    def _of_device(self) -> Callable[[], float | None]:
        from ridgeline.machine.identity import address

        library = self._open.enter_context(nvml.session())
        torch = self._torch
        handle = None
        if library is not None:
            here = torch.device("cuda", torch.cuda.current_device())
            handle = nvml.find(library, address(here))

        def joules() -> float | None:
            if handle is None:
                return None
            found = nvml.ask(library, "nvmlDeviceGetTotalEnergyConsumption", handle)
            return None if found is None else float(found) / 1000

        return joules

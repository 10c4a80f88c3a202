"""The steps of a trial after the watched ones, which are timed: what is counted of them at no cost,
so that a program that does less work from then on is found out, and the energy that they take."""

import hashlib
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from ridgeline.harness.capture.step_times import read_queued
from ridgeline.harness.trials import tensor_prints as prints
from ridgeline.harness.trials.inference_outputs import given_tokens
from ridgeline.harness.usercode.forked_work import DirectWork
from ridgeline.machine import nvml
from ridgeline.machine.telemetry import PackageEnergy
from ridgeline.records.run import Step
from ridgeline.records.trial import LaterStep, Trial

MIN_ENERGY_NS = {"cuda": 1_000_000_000, "cpu": 50_000_000}
"""Least time between two readings of energy. NVML's counter moves every 20 to 100 ms, RAPL's every
millisecond: a shorter time is off by over 10 % on a GPU. A lag of the device behind the host is the
same at both ends, and cancels."""
READ_EVERY_NS = 500_000_000
"""A reading takes up to 0.1 ms. More than two are taken because the program may end before all its
steps are taken."""


class LaterSteps:
    """Counts what the timed steps are given, and sees whether parameters still move at the end."""

    def __init__(self, torch: Any, work: DirectWork) -> None:
        self._torch = torch
        self._work = work
        self._models: list[Callable[[], Any]] = []
        """Weak references: a program may be done with a model."""
        self._digests: dict[str, bytes] = {}
        self._handed = 0
        self.handed: dict[int, int] = {}
        """Elements given to outermost modules, by step."""
        self.queued: dict[int, int] = {}
        """Time in which the thread of a step waited for a processor, by step, in nanoseconds."""
        self._account: tuple[int, int] | None = None
        """The thread that ended the last step, and how long it had waited for a processor."""
        self.counted = True
        """False: steps are replayed, and call nothing."""
        self.looked: int | None = None
        """The step that began when the parameters were looked at."""

    def begin(self, models: Sequence[Any]) -> None:
        """Begin after the last watched step."""
        self._models = [weakref.ref(model) for model in models]

    def look(self, step: int) -> None:
        """Note where the parameters are before the last step, which is not timed."""
        self.looked = step
        self._digests = self._work.run(self._parameter_digests)

    def called(self, args: Any, kwargs: Any) -> None:
        """Count what a call is given. Of a model that only reads tokens, the tokens count: how many
        positions and masks come with them depends on the kind of its cache."""
        tokens = None
        if not self._torch.is_grad_enabled():
            tokens = given_tokens(self._torch, args, kwargs)
        inputs = prints.tensors_in(self._torch, (args, kwargs) if tokens is None else tokens)
        self._handed += sum(tensor.numel() for tensor in inputs)

    def step_ended(self, index: int) -> None:
        self.handed[index], self._handed = self._handed, 0
        before, thread, queued_ns = self._account, get_ident(), read_queued(self._torch)
        self._account = None if queued_ns is None else (thread, queued_ns)
        if before is not None and queued_ns is not None and before[0] == thread:
            self.queued[index] = queued_ns - before[1]

    def unmoved(self, steps: int) -> tuple[str, ...]:
        """Return the parameters that the last step has left as they were, to the bit. `steps` is
        how many steps were taken."""
        if self.looked is None or steps <= self.looked:
            return ()
        now = self._work.run(self._parameter_digests)
        return tuple(name for name, digest in self._digests.items() if now.get(name) == digest)

    def _parameter_digests(self) -> dict[str, bytes]:
        digests: dict[str, bytes] = {}
        for number, model in enumerate((model() for model in self._models), 1):
            if model is None:
                continue
            for name, tensor in prints.named_parameters(model, number):
                if len(digests) < prints.MAX_TENSORS:
                    values = prints.sampled(self._torch, tensor).numpy()
                    digests[name] = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        return digests


def is_timed(step: Step, trial: Trial) -> bool:
    last = trial.looked is not None and step.index >= trial.looked
    return not step.compile_ns and not last


def later_steps(trial: Trial, steps: Sequence[Step]) -> tuple[LaterStep, ...]:
    """Return what was counted of the steps after the watched ones. `steps` has all steps that
    count, from the first on."""
    if not trial.handed:
        return ()
    watched = len(trial.watched)
    # A gradient scaler makes the losses that run backward larger; the watched ones are without it.
    both = zip(trial.watched, steps, strict=False)
    scales = [step.loss / one.loss for one, step in both if one.loss and step.loss]
    scale = median(scales) if scales else 1.0
    return tuple(
        LaterStep(
            number=number,
            loss=step.loss / scale if step.loss is not None else None,
            broke=step.loss_broke,
            forwards=step.forwards,
            backwards=step.backwards,
            updates=step.optimizer_steps,
            handed=trial.handed.get(step.index),
        )
        for number, step in enumerate(steps[watched:], watched)
        if step.detailed
    )


class EnergyMeter:
    """The energy of the timed steps by the machine's own counters: of the GPU that the program
    works on (NVML), else of the processor's packages (RAPL)."""

    def __init__(self, torch: Any, joules: Callable[[], float | None] | None = None) -> None:
        self._torch = torch
        self._joules = joules
        self._kind = "cpu"
        self._open = ExitStack()
        self._first: tuple[int, int, float] | None = None
        """Number of the step, time in nanoseconds, and joules."""
        self._last: tuple[int, int, float] | None = None

    def prepare(self) -> None:
        """Open the counter before anything is timed: NVML takes 10 ms and more to start."""
        if self._joules is None:
            cuda = self._torch.cuda.is_initialized()
            self._kind = "cuda" if cuda else "cpu"
            self._joules = self._device_counter() if cuda else PackageEnergy().joules

    def begin(self, step: int, now_ns: int | None = None) -> None:
        """Begin with `step`, the first that is timed."""
        self.prepare()
        self._first = self._last = self._read(step, now_ns)

    def ended(self, step: int, last: bool, now_ns: int | None = None) -> None:
        """Note that the steps before `step` have ended; read the counter if that is due."""
        if self._last is None:
            return
        now = perf_counter_ns() if now_ns is None else now_ns
        if last or now - self._last[1] >= READ_EVERY_NS:
            self._last = self._read(step, now)

    @property
    def joules(self) -> float | None:
        """The mean energy of a step; None if it could not be measured."""
        if self._first is None or self._last is None:
            return None
        steps, passed, spent = (self._last[at] - self._first[at] for at in range(3))
        if steps < 1 or passed < MIN_ENERGY_NS[self._kind] or spent <= 0:
            return None
        return spent / steps

    def close(self) -> None:
        self._open.close()

    def _read(self, step: int, now_ns: int | None) -> tuple[int, int, float] | None:
        joules = self._joules() if self._joules is not None else None
        now = perf_counter_ns() if now_ns is None else now_ns
        return None if joules is None else (step, now, joules)

    def _device_counter(self) -> Callable[[], float | None]:
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
            millijoules = nvml.ask(library, "nvmlDeviceGetTotalEnergyConsumption", handle)
            return None if millijoules is None else float(millijoules) / 1000

        return joules

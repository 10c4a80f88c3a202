"""Notes what the first steps of a trial compute, for the judgement of equality. Those steps are not
timed, so that watching them may wait for the device."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from ridgeline.harness.capture.step_counts import batch_amount
from ridgeline.harness.trials import tensor_prints as prints
from ridgeline.harness.trials.float64_reference import (
    NO_REFERENCE,
    Float64Reference,
    copied_inputs,
    renewed_inputs,
    undisturbed,
)
from ridgeline.harness.trials.inference_outputs import OutputWatch
from ridgeline.harness.trials.process_memory import forget_own_peak, own_peak_bytes
from ridgeline.harness.trials.random_draws import NoDropout, generators
from ridgeline.harness.trials.tensor_prints import ModelTensors
from ridgeline.harness.trials.timed_steps import LaterSteps
from ridgeline.harness.usercode.forked_work import DirectWork, error_text
from ridgeline.records.trial import TensorPrint, WatchedStep

EARLY_STEPS = 2
"""Tensors are also printed after this step: its update is the first that momentum has a part in."""
MAX_STEPS_WITHOUT_UPDATE = 128
"""Steps to wait for the first update: 40 backwards before an update are not rare."""


class Watch:
    """Holds what a trial notes of its first steps, until `over`."""

    def __init__(self, torch: Any, steps: int, work: DirectWork | None = None) -> None:
        self._torch = torch
        self._work = work or DirectWork()
        self._steps = steps
        self.over = steps == 0
        """Whether the last watched step has ended."""
        self.steps: list[WatchedStep] = []
        self.tensors: tuple[TensorPrint, ...] = ()
        self.early: tuple[TensorPrint, ...] = ()
        self.gradients: dict[str, TensorPrint] = {}
        self.reference = Float64Reference(torch, self._work)
        self.outputs = OutputWatch(torch, self._work)
        self.evaluation: tuple[float, ...] = ()
        self.peak_bytes = 0
        """The peak up to the latest work of ours: of the device, else of the process."""
        self.draws: bool | None = None
        """Whether random numbers were drawn in a model's call, or between the last call and the
        backward, in one of the steps; None: not seen."""
        self.later = LaterSteps(torch, self._work)
        self.undropped: int | None = None
        """See Trial.undropped."""
        self.no_dropout: NoDropout | None = None
        self._generators: tuple[Any, ...] = ()
        self.problems: list[str] = []
        self.settings: list[str] = []
        self._optimizers: set[int] = set()
        """Ids of the optimizers that have stepped."""
        self._models = ModelTensors(torch, self._work)
        self._first: tuple[Any, Any, Any] | None = None
        """The first model, and copies of what it was first called with."""
        self._compared = self._cannot_copy = False
        self._begin_step()

    def _begin_step(self) -> None:
        self._loss: float | None = None
        self._scale = 1.0
        """What a gradient scaler multiplies the loss by before the backward."""
        self._squared_norm = 0.0
        self._gradients = 0
        self._applied = True
        self._samples: int | None = None
        self._batch_sum: float | None = None
        self._summed_at = -1
        """How many backwards the step had when its data were last summed: only the first call after
        a backward gets new data."""
        self._forwards = self._backwards = 0
        self._rate: float | None = None

    def call(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note the call of an outermost module; a training call, if the program trains."""
        if self.over or next(module.parameters(), None) is None:
            return
        with self.uncounted():
            self._call(module, args, kwargs)

    def _call(self, module: Any, args: Any, kwargs: Any) -> None:
        if not self._forwards:
            self.outputs.step_begins(len(self.steps))
        self._forwards += 1
        with self._torch.no_grad():
            self._models.meet(module)
            if self._first is None and not self._cannot_copy:
                self._keep_first(module, args, kwargs)
            self.outputs.called(args, kwargs)
            inputs = (*args, *kwargs.values())
            self._samples = (self._samples or 0) + batch_amount(self._torch, inputs).samples
            data = next(
                (
                    tensor
                    for tensor in prints.tensors_in(self._torch, inputs)
                    if tensor.dim() > 0 and not tensor.is_complex()
                ),
                None,
            )
            # The output of another model of the program (a fake, a state) is not data: it rounds.
            new = self._summed_at != self._backwards
            if data is not None and new and not data.requires_grad:
                self._summed_at = self._backwards
                total = self._work.run(lambda: float(data.detach().double().sum()))
                self._batch_sum = total + (self._batch_sum or 0.0)
        self._generators = () if self.draws else generators(self._torch)

    def call_ended(self) -> None:
        """Note the end of the call that `call` has noted."""
        if not self.over:
            self._note_draws()

    def _note_draws(self) -> None:
        now = generators(self._torch) if self._generators and not self.draws else ()
        if now and len(now) == len(self._generators):
            self.draws = not all(map(self._torch.equal, now, self._generators))

    def _keep_first(self, module: Any, args: Any, kwargs: Any) -> None:
        try:
            copies = [copied_inputs(self._torch, one, module) for one in (args, kwargs)]
        except Exception as error:
            self._cannot_copy = True
            why = f"what the model is given cannot be copied: {type(error).__name__}: {error}"
            self.reference.missing = f"{NO_REFERENCE}: {why}"[:200]
            return
        self._first = (module, copies[0], copies[1])
        self.reference.begin(*self._first)

    def changed(self, module: Any) -> None:
        """Note that the fixes have been applied to a model whose call is about to begin."""
        if self._first is not None and self._first[0] is module and not self._compared:
            self._compared = True
            with self.uncounted():
                self.reference.changed(*self._first)
            if self.reference.problem:
                self.problems.append(self.reference.problem)

    def returned(self, value: Any) -> None:
        """Note what a call of inference returned."""
        if not self.over and self._forwards:
            with self.uncounted():
                self.outputs.returned(value)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave memory that is used inside out of the program's peak: a copy in float64 took more
        than all the steps of a GPT-2."""
        cuda = self._torch.cuda
        on_device = cuda.is_initialized()
        peak = cuda.max_memory_allocated() if on_device else own_peak_bytes()
        self.peak_bytes = max(self.peak_bytes, peak)
        try:
            yield
        finally:
            (cuda.reset_peak_memory_stats if on_device else forget_own_peak)()

    def backward(self, tensors: Any) -> None:
        if self.over:
            return
        self._note_draws()
        self._backwards += 1
        first = tensors[0] if isinstance(tensors, tuple | list) and tensors else tensors
        if isinstance(first, self._torch.Tensor) and first.numel() == 1:
            self._loss = float(first.detach())

    def update(self, optimizer: Any) -> None:
        """Note an optimizer that is about to step."""
        if self.over:
            return
        torch = self._torch
        new = id(optimizer) not in self._optimizers
        with torch.no_grad():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            trained = [p for p in parameters if p.grad is not None]
            scale = getattr(optimizer, "grad_scale", None)
            factor = 1 / float(scale) if scale is not None else 1.0
            named = {self._models.names.get(id(p), ""): p for p in (trained if new else ())}

            def look() -> tuple[float, dict[str, TensorPrint]]:
                return sum(prints.norm(torch, p.grad) ** 2 for p in trained), {
                    name: prints.gradient(torch, name, p.grad, factor)
                    for name, p in named.items()
                    if name and name not in self.gradients
                }

            squared_norm, gradients = self._work.run(look)
            self._squared_norm += squared_norm * factor * factor
            self._gradients += len(trained)
            self.gradients.update(gradients)
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and float(found_inf):
            self._applied = False
        rate = optimizer.param_groups[0].get("lr")
        self._rate = float(rate) if rate is not None else None
        if new:
            self._optimizers.add(id(optimizer))
            self.settings += [_settings(optimizer, group) for group in optimizer.param_groups]

    def scaled(self, scaler: Any) -> None:
        """Note what a scaler that is about to step has multiplied the loss of this step by."""
        if not self.over:
            self._scale = float(scaler.get_scale()) or 1.0

    def skipped(self) -> None:
        self._applied = False

    def step_ended(self) -> None:
        if self.over:
            return
        self.steps.append(
            WatchedStep(
                loss=None if self._loss is None else self._loss / self._scale,
                gradient_norm=math.sqrt(self._squared_norm) if self._gradients else None,
                gradients=self._gradients,
                applied=self._applied,
                samples=self._samples,
                batch_sum=self._batch_sum,
                forwards=self._forwards,
                backwards=self._backwards,
                learning_rate=self._rate,
                outputs=self.outputs.step_ended(len(self.steps)),
                predicted=self.outputs.predicted(),
            )
        )
        self._begin_step()
        if len(self.steps) >= self._steps and not self.waits:
            self.finish()
        elif len(self.steps) == EARLY_STEPS:
            with self._torch.no_grad():
                self.early = self._models.printed()

    def merge_steps(self) -> None:
        """Make one step of all that were counted: they were one, or the beginning of the next."""
        if len(self.steps) > 1:
            self.steps = [_merged(self.steps)]

    def merge_into_this(self) -> None:
        """Add what was counted as steps to the step that ends now."""
        if self.steps:
            before, self.steps = _merged(self.steps), []
            self._forwards += before.forwards
            self._backwards += before.backwards
            self._gradients += before.gradients
            self._squared_norm += (before.gradient_norm or 0.0) ** 2
            self._applied = self._applied and before.applied
            self._loss = before.loss if self._loss is None else self._loss
            if before.samples is not None:
                self._samples = (self._samples or 0) + before.samples
            if before.batch_sum is not None:
                self._batch_sum = (self._batch_sum or 0.0) + before.batch_sum

    def begin_again(self) -> None:
        """Forget what was counted as steps and was none."""
        self.steps.clear()
        self.outputs.begin_again()
        if not self._backwards:
            self._batch_sum = None  # its first half is forgotten: a model may have made this input

    @property
    def waits(self) -> bool:
        """Whether the steps so far may turn out to be parts of one: there were backwards, and
        nothing has moved, so that no update was seen."""
        if self.over or self._optimizers or len(self.steps) >= MAX_STEPS_WITHOUT_UPDATE:
            return False
        return any(step.backwards for step in self.steps) and not self._models.has_moved()

    def finish(self) -> None:
        """End the watch, because the last watched step or the program has ended."""
        if self.over:
            return
        self.over = True
        self.undropped = self.no_dropout.asked_elements if self.no_dropout is not None else None
        with self._torch.no_grad(), self.uncounted():
            self.tensors = self._models.printed()
            try:
                self.evaluation = self._work.run(self._evaluate)
            except Exception as error:
                self.problems.append(f"not evaluated: {error_text(error)}"[:200])
        changed = self.outputs.changed
        self.steps = [
            replace(step, outputs_changed=changed.get(number)) if changed else step
            for number, step in enumerate(self.steps)
        ]
        self.outputs.forget()
        self.later.begin(self._models.models)
        self._models.clear()
        self._first = None

    def _evaluate(self) -> tuple[float, ...]:
        """Return the outputs of the first model on its first batch: as it was written, not
        compiled, with the other fixes applied."""
        if self._first is None:
            return ()
        model, args, kwargs = self._first
        args, kwargs = (renewed_inputs(self._torch, one, model) for one in (args, kwargs))
        with undisturbed(self._torch, model):
            return prints.of_outputs(self._torch, model(*args, **kwargs))


def _merged(steps: list[WatchedStep]) -> WatchedStep:
    """Return the one step that these steps are parts of."""

    def known(value: Callable[[WatchedStep], Any]) -> list[Any]:
        return [value(step) for step in steps if value(step) is not None]

    losses, norms = known(lambda step: step.loss), known(lambda step: step.gradient_norm)
    samples, sums = known(lambda step: step.samples), known(lambda step: step.batch_sum)
    return WatchedStep(
        loss=losses[-1] if losses else None,
        gradient_norm=math.hypot(*norms) if norms else None,
        gradients=sum(step.gradients for step in steps),
        applied=all(step.applied for step in steps),
        samples=sum(samples) if samples else None,
        batch_sum=sum(sums) if sums else None,
        forwards=sum(step.forwards for step in steps),
        backwards=sum(step.backwards for step in steps),
        learning_rate=steps[-1].learning_rate,
    )


def _settings(optimizer: Any, group: dict[str, Any]) -> str:
    """Return the settings that alter results, and not those that choose how they are computed."""
    left_out = ("params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")
    settings = ", ".join(f"{key}={group[key]}" for key in sorted(group) if key not in left_out)
    return f"{type(optimizer).__name__}, {len(group['params'])} parameters: {settings}"

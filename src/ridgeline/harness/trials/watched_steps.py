"""Parameters and buffers of the models that a program calls: how far they are from where they
began."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from ridgeline.harness.capture.batches import amount
from ridgeline.harness.trials import tensor_prints as prints
from ridgeline.harness.trials.float64_reference import (
    Anchor,
    copied_inputs,
    renewed_inputs,
    undisturbed,
)
from ridgeline.harness.trials.inference_outputs import Answers
from ridgeline.harness.trials.process_memory import forget_own_peak, own_peak_bytes
from ridgeline.harness.trials.random_draws import Undropped, generators
from ridgeline.harness.trials.tensor_prints import Tensors
from ridgeline.harness.trials.timed_steps import Later
from ridgeline.harness.usercode.child_process import told
from ridgeline.harness.usercode.forked_work import Here
from ridgeline.records.trial import TensorPrint, WatchedStep

EARLY = 2
"""Steps: the second update is the first that momentum has a part in."""
PATIENCE = 128
"""Steps, as long as nothing has moved: 40 backwards before an update are not rare."""


class Watch:
    """One for the trial. `over` from the moment the last watched step has ended."""

    def __init__(self, torch: Any, steps: int, aside: Here | None = None) -> None:
        self._torch = torch
        self._aside = aside or Here()
        self._steps = steps
        self.over = steps == 0
        self.steps: list[WatchedStep] = []
        self.tensors: tuple[TensorPrint, ...] = ()
        self.early: tuple[TensorPrint, ...] = ()
        self.gradients: dict[str, TensorPrint] = {}
        self.anchor = Anchor(torch, self._aside)
        self.answers = Answers(torch, self._aside)
        self.evaluation: tuple[float, ...] = ()
        self.peak_bytes = 0
        """Up to where something was last asked of it here: of the device, else of the process."""
        self.draws: bool | None = None
        """Between the model's call and the backward, in one of the steps; None: not seen."""
        self.later = Later(torch, self._aside)
        self.undropped: int | None = None
        """As a trial's."""
        self.dropout: Undropped | None = None
        self._generators: tuple[Any, ...] = ()
        self.problems: list[str] = []
        self.settings: list[str] = []
        self._told: set[int] = set()
        self._models = Tensors(torch, self._aside)
        self._first: tuple[Any, Any, Any] | None = None
        self._anchored = self._unasked = False
        self._new()

    def _new(self) -> None:
        self._loss: float | None = None
        self._scale = 1.0
        """Of a gradient scaler: the loss that runs backward is so many times the program's."""
        self._square = 0.0
        self._gradients = 0
        self._applied = True
        self._samples: int | None = None
        self._sum: float | None = None
        self._summed = -1
        """Backwards of the step when its data were last seen: the first call after one gets new."""
        self._forwards = self._backwards = 0
        self._rate: float | None = None

    def call(self, module: Any, args: Any, kwargs: Any) -> None:
        """Of an outermost module; of a program that trains a training call."""
        if self.over or next(module.parameters(), None) is None:
            return
        with self.uncounted():
            self._called(module, args, kwargs)

    def _called(self, module: Any, args: Any, kwargs: Any) -> None:
        if not self._forwards:
            self.answers.step_begins(len(self.steps))
        self._forwards += 1
        with self._torch.no_grad():
            self._models.meet(module)
            if self._first is None and not self._unasked:
                self._keep(module, args, kwargs)
            every = (*args, *kwargs.values())
            found = amount(self._torch, every)
            self._samples = (self._samples or 0) + found.samples
            first = _first_tensor(self._torch, every)
            # What another model of the program has made (a fake, a state) is no data: it rounds.
            fresh = self._summed != self._backwards
            if first is not None and fresh and not first.requires_grad:
                self._summed = self._backwards
                self._sum = self._aside.ask(lambda: _sum(first)) + (self._sum or 0.0)
        self._generators = generators(self._torch)

    def _keep(self, module: Any, args: Any, kwargs: Any) -> None:
        try:
            both = [copied_inputs(self._torch, one, module) for one in (args, kwargs)]
        except Exception as error:
            self._unasked = True
            why = f"what the model is given cannot be copied: {type(error).__name__}: {error}"
            self.problems.append(f"no float64 reference: {why}"[:200])
            return
        self._first = (module, both[0], both[1])
        self.anchor.begin(*self._first)

    def changed(self, module: Any) -> None:
        """The changes have been put on it, and its call is about to begin."""
        if self._first is not None and self._first[0] is module and not self._anchored:
            self._anchored = True
            with self.uncounted():
                self.anchor.changed(*self._first)
            if self.anchor.missing:
                self.problems.append(self.anchor.missing)

    def returned(self, value: Any) -> None:
        """By a call of inference."""
        if not self.over and self._forwards:
            with self.uncounted():
                self.answers.returned(value)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What we take to look at it is not the program's peak: a copy in float64 took more than
        all the steps of a GPT-2 do."""
        cuda = self._torch.cuda
        on = cuda.is_initialized()
        peak = cuda.max_memory_allocated() if on else own_peak_bytes()
        self.peak_bytes = max(self.peak_bytes, peak)
        try:
            yield
        finally:
            (cuda.reset_peak_memory_stats if on else forget_own_peak)()

    def backward(self, tensors: Any) -> None:
        if self.over:
            return
        now = generators(self._torch) if not self.draws else ()
        if now and len(now) == len(self._generators):
            same = map(self._torch.equal, now, self._generators)
            self.draws = not all(same)
        self._backwards += 1
        first = tensors[0] if isinstance(tensors, tuple | list) and tensors else tensors
        if isinstance(first, self._torch.Tensor) and first.numel() == 1:
            self._loss = float(first.detach())

    def update(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        if self.over:
            return
        torch = self._torch
        with torch.no_grad():
            every = [p for g in optimizer.param_groups for p in g["params"]]
            have = [p for p in every if p.grad is not None]
            scale = getattr(optimizer, "grad_scale", None)
            factor = 1 / float(scale) if scale is not None else 1.0
            new = have if id(optimizer) not in self._told else []
            named = {self._models.names.get(id(p), ""): p for p in new}

            def look() -> tuple[float, dict[str, TensorPrint]]:
                return sum(prints.norm(torch, p.grad) ** 2 for p in have), {
                    name: prints.gradient(torch, name, p.grad, factor)
                    for name, p in named.items()
                    if name and name not in self.gradients
                }

            total, gradients = self._aside.ask(look)
            self._square += total * factor * factor
            self._gradients += len(have)
            self.gradients.update(gradients)
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and float(found_inf):
            self._applied = False
        rate = optimizer.param_groups[0].get("lr")
        self._rate = float(rate) if rate is not None else None
        if id(optimizer) not in self._told:
            self._told.add(id(optimizer))
            self.settings += [_told(optimizer, group) for group in optimizer.param_groups]

    def scaled(self, scaler: Any) -> None:
        """A scaler is about to step: what it has scaled the loss of this step by."""
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
                gradient_norm=math.sqrt(self._square) if self._gradients else None,
                gradients=self._gradients,
                applied=self._applied,
                samples=self._samples,
                batch_sum=self._sum,
                forwards=self._forwards,
                backwards=self._backwards,
                learning_rate=self._rate,
                outputs=self.answers.step_ended(len(self.steps)),
            )
        )
        self._new()
        if len(self.steps) >= self._steps and not self.waits:
            self.finish()
        elif len(self.steps) == EARLY:
            with self._torch.no_grad():
                self.early = self._models.printed()

    def merged(self) -> None:
        """All that was counted as steps was one, or the beginning of the one that goes on."""
        if len(self.steps) > 1:
            self.steps = [_one(self.steps)]

    def part_of_this(self) -> None:
        """The step that ends now began with what was counted as steps."""
        if self.steps:
            before, self.steps = _one(self.steps), []
            self._forwards += before.forwards
            self._backwards += before.backwards
            self._gradients += before.gradients
            self._square += (before.gradient_norm or 0.0) ** 2
            self._applied = self._applied and before.applied
            self._loss = before.loss if self._loss is None else self._loss
            if before.samples is not None:
                self._samples = (self._samples or 0) + before.samples
            if before.batch_sum is not None:
                self._sum = (self._sum or 0.0) + before.batch_sum

    def begin_again(self) -> None:
        """What was counted as steps was none."""
        self.steps.clear()
        self.answers.begin_again()
        if not self._backwards:
            self._sum = None  # the first half of it was dropped: perhaps a model made what this got

    @property
    def waits(self) -> bool:
        """Whether what was counted as steps may turn out to be parts of one: there were backwards
        and nothing has moved, so that nothing is known of an update."""
        if self.over or self._told or len(self.steps) >= PATIENCE:
            return False
        return any(step.backwards for step in self.steps) and not self._models.moved()

    def finish(self) -> None:
        """The last watched step has ended, or the program has."""
        if self.over:
            return
        self.over = True
        self.undropped = self.dropout.asked if self.dropout is not None else None
        with self._torch.no_grad(), self.uncounted():
            self.tensors = self._models.printed()
            try:
                self.evaluation = self._aside.ask(self._evaluated)
            except Exception as error:
                self.problems.append(f"not evaluated: {told(error)}"[:200])
        changed = self.answers.changed
        self.steps = [
            replace(step, outputs_changed=changed.get(number)) if changed else step
            for number, step in enumerate(self.steps)
        ]
        self.answers.forget()
        self.later.begin(self._models.models)
        self._models.clear()
        self._first = None

    def _evaluated(self) -> tuple[float, ...]:
        """Of the first root, on its first batch. What compile made is for training: the plain
        call, under whatever else was put on."""
        if self._first is None:
            return ()
        root, args, kwargs = self._first
        args, kwargs = (renewed_inputs(self._torch, one, root) for one in (args, kwargs))
        with undisturbed(self._torch, root):
            return prints.of_outputs(self._torch, root(*args, **kwargs))


def _one(steps: list[WatchedStep]) -> WatchedStep:
    """Steps that were parts of one."""
    losses = [step.loss for step in steps if step.loss is not None]
    norms = [step.gradient_norm for step in steps if step.gradient_norm is not None]
    samples = [step.samples for step in steps if step.samples is not None]
    sums = [step.batch_sum for step in steps if step.batch_sum is not None]
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


def _told(optimizer: Any, group: dict[str, Any]) -> str:
    """What alters results; not which path computes them."""
    paths = ("params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")
    said = [f"{key}={group[key]}" for key in sorted(group) if key not in paths]
    return f"{type(optimizer).__name__}, {len(group['params'])} parameters: {', '.join(said)}"


def _sum(tensor: Any) -> float:
    return float(tensor.detach().double().sum())


def _first_tensor(torch: Any, given: Any) -> Any:
    return next(
        (t for t in prints.tensors_in(torch, given) if t.dim() > 0 and not t.is_complex()), None
    )

"""The options of a study, and the real runs of a model: its step, timed and its peak measured."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from msgspec import Struct

from ridgeline.cost.counting.operands import reachable_tensors, stored_bytes
from ridgeline.cost.counting.parameters import EIGHT_BIT, OPTIMIZERS, state_tensors
from ridgeline.cost.counting.passes import backward_from
from ridgeline.cost.study.target import (
    Dimension,
    InputSpec,
    Prepared,
    free_bytes,
    quiet_stdout,
    watched,
)
from ridgeline.errors import RidgelineError, TargetError
from ridgeline.measure.peak import measure_peak
from ridgeline.measure.timing import time_calls
from ridgeline.records.cost import MeasuredPeak, Memory
from ridgeline.records.latency import Latency

Say = Callable[[str], None]
"""A function that is called with what is being done, to show progress."""


class Options(Struct, frozen=True, kw_only=True):
    """The options of a study, as the command line gives them."""

    inputs: tuple[InputSpec, ...] = ()
    training: bool = False
    optimizer: str = "adamw"
    device: str | None = None
    dtype: Literal["", "float64", "float32", "bfloat16", "float16"] = ""
    meta: bool = False
    timed: bool = True
    budget_s: float = 2.0
    measure_memory: bool = False
    sweep: tuple[Dimension, tuple[int, ...]] | None = None
    fit_bytes: int = 0
    generate: int = 0

    @property
    def mode(self) -> Literal["inference", "training"]:
        return "training" if self.training else "inference"


class Step:
    """One step of the model, to be called: a forward, or a whole training step."""

    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        training: bool,
        optimizer: str,
    ) -> None:
        self._model = model.train(training)
        self._args, self._kwargs = args, kwargs
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer: torch.optim.Optimizer | None = None
        if training and trained and optimizer and optimizer not in EIGHT_BIT:
            self.optimizer = OPTIMIZERS[optimizer](trained)
        self._checked = False
        self._call: Callable[[], object] = self._train if training else self._infer

    def __call__(self) -> object:
        output = self._call()
        if not self._checked:
            self._checked = True
            if any(
                type(t).__name__ == "FakeTensor" or t.is_meta for t in reachable_tensors(output)
            ):
                raise TargetError(
                    "the model keeps tensors from being counted in a place outside its modules (a "
                    "global or a cached function), so a real run would use tensors without data",
                    "--no-time counts it without timing; keeping them on the module cures it",
                )
        return output

    def forget_gradients(self) -> None:
        self._model.zero_grad(set_to_none=True)

    def state_bytes(self) -> int:
        if self.optimizer is None:
            return 0
        return stored_bytes(*state_tensors(self.optimizer))

    def _infer(self) -> object:
        with torch.no_grad():
            return self._model(*self._args, **self._kwargs)

    def _train(self) -> object:
        self.forget_gradients()
        output = self._model(*self._args, **self._kwargs)
        backward_from(output)
        if self.optimizer is not None:
            self.optimizer.step()
        return output


def can_run(
    prepared: Prepared, options: Options, predicted: Memory, host: torch.device
) -> tuple[bool, str]:
    """Return whether a real run is possible, and if not, why."""
    if prepared.is_meta:
        return False, "the model is on meta: counted, not run"
    needed = predicted.peak_bytes - predicted.parameters_bytes - predicted.buffers_bytes
    free = free_bytes(host)
    if needed > free:
        return False, (
            f"not run: {options.mode} needs {needed / 2**30:.1f} GiB beside the weights, and "
            f"{free / 2**30:.1f} GiB are free on {host}"
        )
    return True, ""


def make_step(
    prepared: Prepared,
    options: Options,
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Step:
    return Step(
        prepared.model,
        prepared.args if args is None else args,
        prepared.kwargs if kwargs is None else kwargs,
        training=options.training,
        optimizer=options.optimizer,
    )


def time_step(
    prepared: Prepared,
    step: Step,
    host: torch.device,
    options: Options,
    budget_s: float | None = None,
) -> Latency:
    try:
        with quiet_stdout(), watched("running the model", "try a smaller batch, or --meta", 4):
            return time_calls(step, str(host), budget_s=budget_s or options.budget_s)
    except RidgelineError:
        raise
    except (Exception, SystemExit) as error:
        raise prepared.explained(error) from error


def peak_of_step(
    prepared: Prepared, step: Step | None, host: torch.device, options: Options, say: Say
) -> MeasuredPeak | None:
    if step is None or not options.measure_memory:
        return None
    say("measuring peak memory")
    try:
        with quiet_stdout():
            step()  # creates the optimizer state and the workspaces of kernels
            step.forget_gradients()
            static = step.state_bytes() + stored_bytes(
                *prepared.model.parameters(),
                *prepared.model.buffers(),
                *reachable_tensors((prepared.args, prepared.kwargs)),
            )
            return measure_peak(step, str(host), static, options.mode)
    except RidgelineError:
        raise
    except (Exception, SystemExit) as error:
        raise prepared.explained(error) from error

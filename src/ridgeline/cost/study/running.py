"""A prepared model really run: whether it may, how long it takes, how much memory it takes."""

from typing import Any

import torch

from ridgeline.cost.counting.traffic import stored_bytes
from ridgeline.cost.counting.values import held
from ridgeline.cost.study.options import Options, Say
from ridgeline.cost.study.prepared import Prepared, quiet_stdout
from ridgeline.cost.study.room import free_bytes, watched
from ridgeline.cost.study.step import Step
from ridgeline.errors import RidgelineError
from ridgeline.measure import measure_peak, time_calls
from ridgeline.records.cost import MeasuredPeak, Memory
from ridgeline.records.latency import Latency


def can_run(
    prepared: Prepared, options: Options, predicted: Memory, host: torch.device
) -> tuple[bool, str]:
    """Whether a real run is possible and asked for, else why not."""
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
            step()  # optimizer state and kernel workspaces exist from the second step on
            step.forget_gradients()
            static = step.state_bytes() + stored_bytes(
                *prepared.model.parameters(),
                *prepared.model.buffers(),
                *held((prepared.args, prepared.kwargs)),
            )
            return measure_peak(step, str(host), static, options.mode)
    except RidgelineError:
        raise
    except (Exception, SystemExit) as error:
        raise prepared.explained(error) from error

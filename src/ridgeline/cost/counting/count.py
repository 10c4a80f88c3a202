"""What a model costs, before it runs: parameters, work and memory, from one pass under the counter.

Knows nothing about clocks or devices' speeds.
"""

from typing import Any, Literal

import torch
from msgspec import Struct
from torch.nn.parameter import is_lazy

from ridgeline.cost.counting.memory import memory_of
from ridgeline.cost.counting.optimizers import OptimizerAccount
from ridgeline.cost.counting.parameters import count_parameters
from ridgeline.cost.counting.passes import Pass, device_of, run_pass
from ridgeline.cost.counting.totals import cost_of
from ridgeline.records.cost import Backend, Cost, Memory, Parameters


class Account(Struct, frozen=True, kw_only=True):
    """One model, one set of inputs, accounted once."""

    parameters: Parameters
    cost: Cost
    memory: Memory


def count(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    backend: Literal["auto", "real", "fake", "meta"] = "auto",
    training: bool = False,
    optimizer: str = "",
) -> Account:
    """Run the model once under the counter and say what it costs.

    `backend` chooses the tensors: "fake" and "meta" compute nothing, "real" runs the model; "auto"
    takes meta for a model on meta, else fake, and real where fake ones do not carry what the model
    asks for. `training` runs forward and backward in train mode, `optimizer` adds its step; else
    the model runs in eval mode without gradients.
    """
    kwargs = kwargs or {}
    notes: list[str] = []
    if any(is_lazy(p) for p in model.parameters()):
        with torch.no_grad():  # lazy modules learn their shapes from a first batch
            model(*args, **kwargs)
    result, used = _run(model, args, kwargs, backend, training, notes)
    step = None
    if training and optimizer:
        parameters = list(model.parameters())
        trained = [parameters[position] for position in result.trained]
        # torch steps lists of tensors at once on a GPU, one tensor at a time on a CPU
        foreach = device_of(model, args, kwargs).type in ("cuda", "meta")
        step = OptimizerAccount(optimizer, trained, foreach)
        if step.estimated:
            notes.append(f"{step.name}: state estimated from its format, step not counted")
    notes += result.notes
    memory = memory_of(result, used, step, training)
    cost = cost_of(model, result, used, step, memory.activations_by_module, tuple(notes))
    return Account(parameters=count_parameters(model), cost=cost, memory=memory)


def _run(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backend: Literal["auto", "real", "fake", "meta"],
    training: bool,
    notes: list[str],
) -> tuple[Pass, Backend]:
    if backend != "auto":
        return run_pass(model, args, kwargs, backend, training), backend
    first: Backend = "meta" if device_of(model, args, kwargs).type == "meta" else "fake"
    try:
        return run_pass(model, args, kwargs, first, training), first
    except Exception as error:
        if first == "meta":
            raise
        # whatever stopped it, the model itself decides: it runs, or its own error comes out
        result = run_pass(model, args, kwargs, "real", training)
        words = str(error).strip().splitlines()
        notes.append(f"counted on a real run: {words[0][:200] if words else type(error).__name__}")
        return result, "real"

"""What is optimized: a step function with its model, loader and, where it trains, its optimizer, as
they were given."""

import inspect
from collections.abc import Callable
from typing import Any

from ridgeline.errors import UsageError

_FORMS = {
    True: "write step(model, optimizer, batch), or step(batch) that closes over both",
    False: "write step(model, batch), or step(batch); one that trains needs optimizer=",
}
"""By whether it trains."""


class Subject:
    def __init__(self, torch: Any, step: Any, model: Any, optimizer: Any, loader: Any) -> None:
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"model is a {_name(model)}, not an nn.Module")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(f"optimizer is a {_name(optimizer)}, not one of torch.optim")
        self.step = step
        self.trains = optimizer is not None
        self.takes = _takes(step, self.trains)
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.has_loader = isinstance(loader, torch.utils.data.DataLoader)
        self.device = _device(torch, model)
        _check_loader(loader)

    def call(self, batch: Any) -> Any:
        if self.takes == 1:
            return self.step(batch)
        if self.takes == 2:
            return self.step(self.model, batch)
        return self.step(self.model, self.optimizer, batch)

    @property
    def name(self) -> str:
        return str(getattr(self.step, "__qualname__", None) or _name(self.step))


def _takes(step: Callable[..., Any], trains: bool) -> int:
    forms = _FORMS[trains]
    if not callable(step):
        raise UsageError(f"step is a {_name(step)}, not a function", forms)
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        raise UsageError("what step takes cannot be seen", forms) from None
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in by_place and p.default is p.empty]
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(needed) not in (1, 3 if trains else 2) or named:
        told = ", ".join(p.name for p in (*needed, *named)) or "nothing"
        raise UsageError(f"step takes {told}", forms)
    return len(needed)


def _device(torch: Any, model: Any) -> str:
    for parameter in model.parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise UsageError("the model has lazy layers: call it once with a batch first")
        if parameter.is_meta:
            raise UsageError("the model's parameters are on the meta device: nothing can run")
        return str(parameter.device.type)
    raise UsageError("the model has no parameters")


def _check_loader(loader: Any) -> None:
    try:
        begun = iter(loader) is loader if not hasattr(loader, "dataset") else False
    except TypeError:
        raise UsageError(f"loader is a {_name(loader)}, which has no batches to give") from None
    if begun:
        raise UsageError(
            f"loader is a {_name(loader)}, which can be gone through once",
            "give a DataLoader, a list of batches, or what begins anew each time",
        )
    if hasattr(loader, "__len__") and not hasattr(loader, "dataset") and len(loader) == 0:
        raise UsageError("the loader has no batches", "give one with at least one batch")


def _name(value: Any) -> str:
    return type(value).__name__

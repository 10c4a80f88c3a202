"""Building a model without weights, where its own constructor may ask for values.

Many do: `[x.item() for x in torch.linspace(0, rate, depth)]` sets a drop rate for each layer.
Where a plain build on meta fails for want of data, small constants (ranges and literals) are made
on the CPU and everything goes to meta afterwards.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CONSTANTS = {torch.arange, torch.linspace, torch.logspace, torch.tensor}


class _ConstantsWithData(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CONSTANTS and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def build_on_meta(make: Callable[[], Any]) -> Any:
    """What `make` returns, its modules on meta."""
    try:
        with torch.device("meta"):
            return make()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if "meta" not in str(error).lower():
            raise
    with torch.device("meta"), _ConstantsWithData():
        built = make()
    for part in built if isinstance(built, tuple) else (built,):
        if isinstance(part, torch.nn.Module):
            part.to("meta")
    return built

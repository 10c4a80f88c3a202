"""What a model was given, so that it can be called with it once more: a cache that a call appends
to, or any object of the program's own, is copied for each call of ours, or the program would find
it changed."""

import types
from copy import deepcopy
from typing import Any

_DEPTH = 4
_PLAIN = (
    bool, int, float, complex, str, bytes, type, types.NoneType, types.FunctionType,
    types.BuiltinFunctionType, types.MethodType, types.ModuleType, slice, range,
)  # fmt: skip
"""Nothing of it can be changed by a call, or nobody expects it."""


def kept(torch: Any, value: Any, module: Any) -> Any:
    """As it is now. Raises what copying an object raises that cannot be copied. `module`: what is
    called; an object that holds it, or a part of it, goes on holding it."""
    return _Copies(torch, module).of(value, lambda tensor: tensor.detach().clone())


def renewed(torch: Any, value: Any, module: Any) -> Any:
    """For one call: its objects again, its tensors as they are."""
    return _Copies(torch, module).of(value, lambda tensor: tensor)


class _Copies:
    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        own = (torch.dtype, torch.device, torch.Size, torch.Generator, torch.nn.Module)
        self._plain = (*_PLAIN, *own)
        # A second model on the device would be seen in the program's peak, or not fit.
        held = (*module.modules(), *module.parameters(), *module.buffers())
        self._memo = {id(one): one for one in held}

    def of(self, value: Any, do: Any, depth: int = 0) -> Any:
        if isinstance(value, self._torch.Tensor):
            return do(value)
        if depth < _DEPTH and (type(value) in (tuple, list) or _named(value)):
            parts = [self.of(one, do, depth + 1) for one in value]
            return type(value)(*parts) if _named(value) else type(value)(parts)
        if depth < _DEPTH and type(value) is dict:
            return {key: self.of(one, do, depth + 1) for key, one in value.items()}
        if isinstance(value, self._plain):
            return value
        return deepcopy(value, dict(self._memo))


def _named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")

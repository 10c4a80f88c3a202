"""Tensors wherever a program holds them: in nested containers, dataclasses and plain objects."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

DEEPEST = 6
_LEAVES = (
    str, bytes, int, float, complex, bool, type(None), type, FunctionType, MethodType, ModuleType,
    torch.nn.Module, torch.dtype, torch.device, torch.Size, torch.Generator,
)  # fmt: skip


def contained(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from contained(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from contained(item)


def held(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor that can be reached, attributes of objects included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, _LEAVES) or depth > DEEPEST:
        return
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from held(item, depth + 1)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from held(item, depth + 1)
    else:
        for item in _attributes(value).values():
            yield from held(item, depth + 1)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same value with its tensors changed; what holds none stays the same object."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, _LEAVES):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(v, change) for v in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(v, change) for v in value)
    if isinstance(value, dict):
        changed = copy.copy(value)
        for key, item in value.items():
            changed[key] = mapped(item, change)
        return changed
    if dataclasses.is_dataclass(value):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(twin, field.name, mapped(getattr(value, field.name), change))
        return twin
    return value


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                found[name] = getattr(value, name)
    return found

"""A model's outputs, of whatever kind, with their tensors changed."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from typing import Any

_DEPTH = 6


def mapped(torch: Any, value: Any, do: Callable[[Any], Any], depth: int = 0) -> Any:
    """`do` for each tensor. What is no tensor, tuple, list, mapping or data class stays as it is;
    a value in which nothing changed is returned itself."""
    if isinstance(value, torch.Tensor):
        return do(value)
    if depth >= _DEPTH:
        return value
    if isinstance(value, tuple | list):
        return _sequence(value, [mapped(torch, one, do, depth + 1) for one in value])
    if isinstance(value, Mapping):
        new = {key: mapped(torch, one, do, depth + 1) for key, one in value.items()}
        return _mapping(value, {key: one for key, one in new.items() if one is not value[key]})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        found = {name: mapped(torch, getattr(value, name), do, depth + 1) for name in fields}
        return _fields(value, {n: one for n, one in found.items() if one is not getattr(value, n)})
    return value


def tensors(torch: Any, value: Any) -> Iterator[Any]:
    found: list[Any] = []

    def keep(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    mapped(torch, value, keep)
    yield from found


def _sequence(value: Any, new: list[Any]) -> Any:
    if all(one is was for one, was in zip(new, value, strict=True)):
        return value
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*new)
    return type(value)(new)


def _mapping(value: Any, changed: dict[Any, Any]) -> Any:
    if not changed:
        return value
    if type(value) is dict:  # which the model may keep for itself
        return {**value, **changed}
    if isinstance(value, MutableMapping):  # Hugging Face's outputs, which keep their kind
        for key, one in changed.items():
            value[key] = one
    return value


def _fields(value: Any, changed: dict[str, Any]) -> Any:
    if not changed:
        return value
    made = copy(value)
    for name, one in changed.items():
        object.__setattr__(made, name, one)  # of frozen ones too
    return made

"""A module's forward wrapped from outside, and the tensors in what it is given and returns.

The wrapped forward is a bound method of the module, not a closure over it: a copy of the model (an
exponential average, a checkpoint of the whole object) then runs on the copy's own parameters.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from importlib import import_module
from types import MethodType
from typing import Any

Forward = Callable[..., Any]
"""A forward that takes the module as its first argument."""
_APPLIED = "_ridgeline_fixes"
_OUTSIDE = "_ridgeline_outside"
_BARE = "_ridgeline_bare"
_REWRAPPED = "_ridgeline_rewrapped"
_MAX_DEPTH = 6
"""Tensors nested deeper in containers are not looked for."""


def wrap_forward(
    module: Any, fix: str, wrap: Callable[[Forward], Forward], *, outside: bool = False
) -> None:
    """Put `wrap` around the module's forward. With `outside` it goes around the compiled code if
    the module is compiled, as in a source that has it around the model's call: a graph with
    autocast inside differs from the patched copy's, and Dynamo's caches do not take it."""
    theirs = module.forward
    bound = isinstance(theirs, MethodType) and theirs.__self__ is module
    if bound:
        inner: Forward = theirs.__func__
    else:  # a forward that some library has set on the instance

        @functools.wraps(theirs)
        def inner(_: Any, *args: Any, **kwargs: Any) -> Any:
            return theirs(*args, **kwargs)

    made = _skip_if_compiled(inner, wrap(inner)) if outside else wrap(inner)
    made.__name__, made.__doc__ = "forward", inner.__doc__  # pickle finds a method by its name
    if bound:
        made.__wrapped__ = inner  # type: ignore[attr-defined] # for those that ask its signature
    setattr(made, _APPLIED, (*fixes_around(module), fix))
    setattr(made, _OUTSIDE, (*_outside(module), *([wrap] if outside else [])))
    module.forward = MethodType(made, module)
    rewrap_compiled(module)


def fixes_around(module: Any) -> tuple[str, ...]:
    """Return the ids of the fixes that were put around the module's forward so far."""
    found = getattr(module.forward, _APPLIED, ())
    return found if isinstance(found, tuple) else ()


def rewrap_compiled(module: Any) -> None:
    """Put all wrappers that go outside around the compiled code of the module, if it has any."""
    compiled = getattr(module, "_compiled_call_impl", None)
    wraps = _outside(module)
    if compiled is None or not wraps:
        return
    bare = getattr(compiled, _BARE, compiled)

    def inner(_: Any, *args: Any, **kwargs: Any) -> Any:
        return bare(*args, **kwargs)

    outer: Forward = inner
    for wrap in wraps:
        outer = wrap(outer)

    def called(*args: Any, **kwargs: Any) -> Any:
        return outer(module, *args, **kwargs)

    setattr(called, _BARE, bare)
    module._compiled_call_impl = called
    setattr(module, _REWRAPPED, True)


def _skip_if_compiled(bare: Forward, made: Forward) -> Forward:
    """Return `made`, which runs as `bare` inside code whose wrappers are outside it already, unless
    the program compiled the module after us. Even to look at an image that is laid out right by
    then would make it the graph's first input: another graph than that of the source."""
    compiler = import_module("torch").compiler

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = self._compiled_call_impl is not None and getattr(self, _REWRAPPED, False)
        if compiler.is_compiling() and done:
            return bare(self, *args, **kwargs)
        return made(self, *args, **kwargs)

    return forward


def _outside(module: Any) -> tuple[Callable[[Forward], Forward], ...]:
    return getattr(module.forward, _OUTSIDE, ())


def map_tensors(torch: Any, value: Any, do: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return the value with `do` applied to each tensor in it. Whatever is not a tensor, tuple,
    list, mapping or data class stays as it is; if nothing changed, the value itself is returned."""
    if isinstance(value, torch.Tensor):
        return do(value)
    if depth >= _MAX_DEPTH:
        return value
    if isinstance(value, tuple | list):
        return _sequence(value, [map_tensors(torch, one, do, depth + 1) for one in value])
    if isinstance(value, Mapping):
        new = {key: map_tensors(torch, one, do, depth + 1) for key, one in value.items()}
        return _mapping(value, {key: one for key, one in new.items() if one is not value[key]})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        new = {name: map_tensors(torch, getattr(value, name), do, depth + 1) for name in names}
        return _fields(value, {n: one for n, one in new.items() if one is not getattr(value, n)})
    return value


def tensors_in(torch: Any, value: Any) -> Iterator[Any]:
    found: list[Any] = []

    def keep(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    map_tensors(torch, value, keep)
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
        object.__setattr__(made, name, one)  # works for frozen classes too
    return made

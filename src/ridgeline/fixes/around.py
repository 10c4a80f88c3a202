"""A module's forward with something around it, put on from outside.

The new one is a bound method of the module, not a closure over it: a copy of the model (an
exponential average, a checkpoint of the whole object) then runs on the copy's own parameters.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from types import MethodType
from typing import Any

Forward = Callable[..., Any]
"""Called with the module first."""
_WORN = "_ridgeline_changes"
_OUTSIDE = "_ridgeline_outside"
_BARE = "_ridgeline_bare"
_DRESSED = "_ridgeline_dressed"


def around(
    module: Any, fix: str, wrap: Callable[[Forward], Forward], *, outside: bool = False
) -> None:
    """`outside`: where the module is compiled, around what was compiled, as in a source that has it
    around the model's call. A graph with autocast inside is another than the copy's, and Dynamo's
    caches do not take it."""
    theirs = module.forward
    bound = isinstance(theirs, MethodType) and theirs.__self__ is module
    if bound:
        inner: Forward = theirs.__func__
    else:  # a forward some library has put on the instance

        @functools.wraps(theirs)
        def inner(_: Any, *args: Any, **kwargs: Any) -> Any:
            return theirs(*args, **kwargs)

    made = _not_within(inner, wrap(inner)) if outside else wrap(inner)
    made.__name__, made.__doc__ = "forward", inner.__doc__  # pickle finds a method by its name
    if bound:
        made.__wrapped__ = inner  # type: ignore[attr-defined] # its signature is asked for
    setattr(made, _WORN, (*worn(module), fix))
    setattr(made, _OUTSIDE, (*_outside(module), *([wrap] if outside else [])))
    module.forward = MethodType(made, module)
    dress(module)


def worn(module: Any) -> tuple[str, ...]:
    """Changes put around its forward before."""
    found = getattr(module.forward, _WORN, ())
    return found if isinstance(found, tuple) else ()


def dress(module: Any) -> None:
    """What was compiled of it, with all around it that goes outside."""
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
    setattr(module, _DRESSED, True)


def _not_within(bare: Forward, made: Forward) -> Forward:
    """It was done outside what is compiled now, unless the program compiled the module after us.
    To look at an image alone, which is laid out right by then, would make it the graph's first
    input: another graph than that of the source."""
    compiler = import_module("torch").compiler

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = self._compiled_call_impl is not None and getattr(self, _DRESSED, False)
        if compiler.is_compiling() and done:
            return bare(self, *args, **kwargs)
        return made(self, *args, **kwargs)

    return forward


def _outside(module: Any) -> tuple[Callable[[Forward], Forward], ...]:
    return getattr(module.forward, _OUTSIDE, ())

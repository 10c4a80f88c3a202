"""A module's forward with something around it, put on from outside.

The new one is a bound method of the module, not a closure over it: a copy of the model (an
exponential average, a checkpoint of the whole object) then runs on the copy's own parameters.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

Forward = Callable[..., Any]
"""Called with the module first."""
_WORN = "_ridgeline_changes"


def around(module: Any, change: str, wrap: Callable[[Forward], Forward]) -> None:
    theirs = module.forward
    bound = isinstance(theirs, MethodType) and theirs.__self__ is module
    if bound:
        inner: Forward = theirs.__func__
    else:  # a forward some library has put on the instance

        @functools.wraps(theirs)
        def inner(_: Any, *args: Any, **kwargs: Any) -> Any:
            return theirs(*args, **kwargs)

    made = wrap(inner)
    made.__name__, made.__doc__ = "forward", inner.__doc__  # pickle finds a method by its name
    if bound:
        made.__wrapped__ = inner  # type: ignore[attr-defined] # its signature is asked for
    setattr(made, _WORN, (*worn(module), change))
    module.forward = MethodType(made, module)


def worn(module: Any) -> tuple[str, ...]:
    """Changes put around its forward before."""
    found = getattr(module.forward, _WORN, ())
    return found if isinstance(found, tuple) else ()

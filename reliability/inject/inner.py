"""The seam `inner`: any function inside our own code that runs in the program may fail.

What the program calls directly (the seams' own entry points) is left alone: an exception there
would be one of the interpreter's, not of ours. Everything they call is wrapped.
"""

import sys
from types import FunctionType

from faults import hit

ENTRANCES = (
    "_begins", "_ends", "_seen", "user_ended_step", "farewell", "forked", "put_on", "take_off",
    "find_spec",
)  # fmt: skip
LEFT_ALONE = (
    "__getattr__", "__getattribute__", "__del__", "__exit__", "__enter__", "_note_fault", "fault",
    "_is_training_thread", "_wake", "_stop_if_due", "_leave",
)  # fmt: skip
"""The last four and the handling of faults itself do nothing that can fail."""


def put_on() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("ridgeline.harness.capture."):
            for thing in list(vars(module).values()):
                if isinstance(thing, type) and thing.__module__ == name:
                    wrap_class(thing)


def wrap_class(kind: type) -> None:
    for name, function in list(vars(kind).items()):
        entrance = name.endswith(ENTRANCES)
        if isinstance(function, FunctionType) and not entrance and name not in LEFT_ALONE:
            setattr(kind, name, failing(function))


def failing(function: FunctionType) -> FunctionType:
    def called(*args: object, **kwargs: object) -> object:
        hit("inner")
        return function(*args, **kwargs)

    called.__name__ = function.__name__
    return called  # type: ignore[return-value]

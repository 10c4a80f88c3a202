"""Measurement of a call on this machine: time, peak memory, and the speed of text generation.

The package knows torch and clocks but no models: the caller passes what is to be called. Names are
loaded at first use, so that importing the package imports neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "measure_peak": "ridgeline.measure.peak",
    "time_calls": "ridgeline.measure.timing",
    "time_generation": "ridgeline.measure.generation",
}

__all__ = ["measure_peak", "time_calls", "time_generation"]

if TYPE_CHECKING:
    from ridgeline.measure.generation import time_generation
    from ridgeline.measure.peak import measure_peak
    from ridgeline.measure.timing import time_calls


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'ridgeline.measure' has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""What the hardware can do: identity, datasheet peaks, measured ceilings, and what disturbs them.

    identify()                    the machine, nothing measured
    measure("cuda")               ceilings measured now, and kept
    cached("cuda")                ceilings measured earlier, or None
    ceilings("cpu", ["float32"])  kept ones, and the missing measured quickly
    conditions("cuda")            what would disturb a measurement now
    measured_under("cuda")        what disturbed the kept one
    left_out("cpu")               dtypes the device cannot do, with reasons
    resolve_device("cuda:1")      a torch device that exists, or one sentence

Nothing here imports torch until one of them is called for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.machine.identity import identify, resolve_device
    from ridgeline.machine.surroundings import conditions
    from ridgeline.machine.survey import cached, ceilings, left_out, measure, measured_under

__all__ = [
    "cached",
    "ceilings",
    "conditions",
    "identify",
    "left_out",
    "measure",
    "measured_under",
    "resolve_device",
]

_HOME = {
    "cached": "survey",
    "ceilings": "survey",
    "conditions": "surroundings",
    "identify": "identity",
    "left_out": "survey",
    "measure": "survey",
    "measured_under": "survey",
    "resolve_device": "identity",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ridgeline.machine' has no attribute {name!r}")
    return getattr(import_module(f"ridgeline.machine.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

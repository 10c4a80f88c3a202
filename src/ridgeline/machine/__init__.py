"""The capabilities of the hardware: identity, datasheet peaks, measured ceilings, and what disturbs
measurements.

    identify()                    the machine, without measuring
    measure("cuda")               measure ceilings now, and store them
    cached("cuda")                the device with the stored ceilings, or None
    ceilings("cpu", ["float32"])  stored ceilings; missing ones are measured quickly
    conditions("cuda")            what would disturb a measurement now
    stored_conditions("cuda")     what disturbed the stored measurement
    missing_dtypes("cpu")         dtypes the device cannot compute, with reasons
    resolve_device("cuda:1")      the torch device, or an error if it does not exist

Importing this package does not import torch; the first use of one of these names does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.machine.identity import identify, resolve_device
    from ridgeline.machine.surroundings import conditions
    from ridgeline.machine.survey import (
        cached,
        ceilings,
        measure,
        missing_dtypes,
        stored_conditions,
    )

__all__ = [
    "cached",
    "ceilings",
    "conditions",
    "identify",
    "measure",
    "missing_dtypes",
    "resolve_device",
    "stored_conditions",
]

_HOME = {
    "cached": "survey",
    "ceilings": "survey",
    "conditions": "surroundings",
    "identify": "identity",
    "missing_dtypes": "survey",
    "measure": "survey",
    "stored_conditions": "survey",
    "resolve_device": "identity",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ridgeline.machine' has no attribute {name!r}")
    return getattr(import_module(f"ridgeline.machine.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

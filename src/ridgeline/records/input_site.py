"""The loader in a traced step: which kind it is, and the user's functions beneath it."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.trace import Place


class Callee(Struct, frozen=True, kw_only=True):
    """What a function of the user's calls: a library's function, or a built-in one."""

    name: str
    """loads: as it would be written in a call."""
    within: str = ""
    """json: the module, where it is written in Python."""
    ns: int = 0


class InputSite(Struct, frozen=True, kw_only=True):
    """One function of the user's. Times are a step's."""

    place: Place
    """Its `ns` is without other functions of the user's it calls."""
    callees: tuple[Callee, ...] = ()
    """Costliest first, ten at most; theirs is in that time."""


class InputSites(Struct, frozen=True, kw_only=True):
    kind: Literal["", "single", "multiple", "by hand"] = ""
    """The DataLoader's iterator by its name: in the program's process, or with workers; by hand:
    a function of the user's that makes batches by its name."""
    ns: float = 0.0
    """A step: the main thread in it."""
    sites: tuple[InputSite, ...] = ()
    """Costliest first; () with workers, whose work no trace of this process shows."""

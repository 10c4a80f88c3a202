"""Where the host's Python time went, by function and line of the user's own code."""

from typing import Literal

from msgspec import Struct

DEEPEST = 64
OTHERS = "(others)"
"""A stack of this alone: samples whose stacks there was no room for."""
CUT = "…"
"""A frame that stands for those left out of a deeper stack; both ends of it are kept."""


class Sampled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of python-<pid>.jsonl: stacks seen in one process since its line before.

    A stack is a tuple of frames "file:line:function", outermost first, cut at `DEEPEST` frames."""

    pid: int
    process: Literal["main", "worker"] = "main"
    worker: int = -1
    at_ns: int = 0
    samples: int = 0
    interval_ns: int = 0
    stacks: tuple[tuple[tuple[str, ...], int], ...] = ()
    """(frames, times seen)."""


class PythonLine(Struct, frozen=True, kw_only=True):
    """A line of the user's own code and the time spent in it or in what it calls."""

    file: str
    line: int
    function: str
    source: str = ""
    """The text of the line, where the file can still be read."""
    process: Literal["main", "worker"] = "main"
    share: float = 0.0
    """Of the samples of its kind of process, with what it calls outside the user's code."""
    total_share: float = 0.0
    """With everything it calls."""
    seconds: float = 0.0
    calls: str = ""
    """The library function most of that time was in: PIL.Image.resize."""


class InputLines(Struct, frozen=True, kw_only=True):
    """What makes batches: the user's code beneath a loader, or in a function that by its name
    makes them, in whichever process it ran."""

    main_samples: int = 0
    worker_samples: int = 0
    lines: tuple[PythonLine, ...] = ()
    """Costliest first; shares are of these samples. Without a file: a library's own dataset or
    collation, named in `calls`."""
    functions: tuple[str, ...] = ()
    """file:function of all of the user's that were on the way, in the order of their names."""


class PythonView(Struct, frozen=True, kw_only=True):
    main_samples: int = 0
    worker_samples: int = 0
    worker_idle_samples: int = 0
    """Of those: no index to work on. Shares of workers are of the others."""
    workers: int = 0
    interval_ns: int = 0
    lines: tuple[PythonLine, ...] = ()
    """Costliest first by their own share, main and workers together."""
    functions: tuple[PythonLine, ...] = ()
    """The same by function: the line is where it begins."""
    input: InputLines = InputLines()

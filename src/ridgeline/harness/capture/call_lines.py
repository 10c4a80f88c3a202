"""Which lines of the user's own code made which calls in the traced steps.

A trace names functions by the line where each begins. The profiler also knows the line from which
every call was made, but does not write that line to the trace. So this module asks the profiler.
That is how a `.item()` gets its line, and how a line in a branch that was not taken is told from
one that ran.
"""

import os
import re
import sys
from time import perf_counter
from typing import Any

from ridgeline.harness.capture.places import own
from ridgeline.records.run import CallSeen

MAX_WALK_S = 2.0
"""Time limit for the walk over the events: an event takes 5 µs, and the program waits meanwhile.
When the limit is reached, nothing is kept, because lines that were not yet found would look as if
they had not run."""
MAX_LINES = 5_000
_EVENTS_BETWEEN_CLOCKS = 4_096
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)")
_PYTHON = re.compile(r"\(\d+\): ([\w<>]+)$")
_MODULE = re.compile(r"^nn\.Module: (\w+?)(?:_\d+)?$")


def calls_seen(profiler: Any) -> tuple[CallSeen, ...]:
    """Return the calls that each line of the user's code made while `profiler` (torch's, now
    stopped) recorded. Return nothing if the profiler knows no callers, or if there are too many
    events or lines."""
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    files = _OwnFiles()
    found: dict[tuple[str, int, str], int] = {}
    end, looked = perf_counter() + MAX_WALK_S, 0
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        looked += 1
        if looked % _EVENTS_BETWEEN_CLOCKS == 0 and perf_counter() > end:
            return ()
        caller = getattr(event.typed[1], "caller", None)  # only Python and built-in calls have it
        if caller is None:
            continue
        file, name = files[caller.file_name], _callee(event.name)
        if file and name:
            key = (file, caller.line_number, name)
            found[key] = found.get(key, 0) + 1
    if len(found) > MAX_LINES:
        return ()
    return tuple(
        CallSeen(file=file, line=line, name=name, times=times)
        for (file, line, name), times in sorted(found.items())
    )


def _callee(event: str) -> str:
    for pattern in (_BUILT_IN, _PYTHON, _MODULE):
        match = pattern.search(event)
        if match is not None:
            return match[1]
    return ""


class _OwnFiles(dict[str, str]):
    """Full paths of the user's own files by the names that the profiler gives them, which lack the
    entry of `sys.path`; "" for a file that is not the user's. Each name is looked for once."""

    def __init__(self) -> None:
        super().__init__()
        named = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        self._own = [os.path.abspath(file) for file in named if isinstance(file, str) and own(file)]

    def __missing__(self, name: str) -> str:
        ends = [file for file in self._own if file == name or file.endswith(f"/{name}")]
        self[name] = ends[0] if ends else ""
        return self[name]

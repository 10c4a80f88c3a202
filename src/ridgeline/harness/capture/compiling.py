"""What torch.compile did: time in each step, recompiles and graph breaks with their reasons.

Dynamo keeps the records itself; it is asked, and only a pair of callbacks tells when it compiles.
"""

import contextlib
import sys
import time
from typing import Any

from ridgeline.harness.capture import places
from ridgeline.records.run import Compilation

MOST = 64
_LONGEST = 400
MAX_CALLERS = 1024
_called_at: dict[str, str] = {}
"""The user's line that called the compiled function, by Dynamo's number of the compilation. There
is one such table for the process, as there is one of Dynamo's own records."""


class Compiling:
    def __init__(self) -> None:
        self._watching = False
        self._began = 0
        self._depth = 0
        self.ns = 0
        """Spent compiling since it was last asked."""
        self.seen = False

    def watch(self) -> None:
        """Ask for a word at each compilation, as soon as Dynamo has been imported."""
        if self._watching or "torch._dynamo.callback" not in sys.modules:
            return
        self._watching = True
        handler = sys.modules["torch._dynamo.callback"].callback_handler
        handler.register_start_callback(self._start)
        handler.register_end_callback(self._end)

    def leave(self) -> None:
        if not self._watching:
            return
        handler = sys.modules["torch._dynamo.callback"].callback_handler
        if self._start in handler.start_callbacks:
            handler.remove_start_callback(self._start)
        if self._end in handler.end_callbacks:
            handler.remove_end_callback(self._end)

    def take(self) -> int:
        spent, self.ns = self.ns, 0
        return spent

    def _start(self, *arguments: Any) -> None:
        self.seen = True
        self._depth += 1
        with contextlib.suppress(Exception):
            _remember_caller(str(getattr(arguments[0], "compile_id", "")))
        if self._depth == 1:
            self._began = time.perf_counter_ns()

    def _end(self, *arguments: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth == 0 and self._began:
            self.ns += time.perf_counter_ns() - self._began


def _remember_caller(compilation: str) -> None:
    """Remember the user's line that led to a compilation. This is called when Dynamo begins to
    compile, while the user's frames are on the stack. The backward is compiled later, under the
    same number but from another caller, so the first line is kept."""
    if compilation and compilation not in _called_at and len(_called_at) < MAX_CALLERS:
        _called_at[compilation] = places.here()


def compilations() -> tuple[Compilation, ...]:
    """The latest that Dynamo remembers (64)."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return ()
    found = []
    for metrics in utils.get_compilation_metrics()[-MOST:]:
        file = getattr(metrics, "co_filename", None) or ""
        line = getattr(metrics, "co_firstlineno", None) or 0
        found.append(
            Compilation(
                place=f"{file}:{line}" if file else "",
                function=getattr(metrics, "co_name", None) or "",
                called_at=_called_at.get(str(getattr(metrics, "compile_id", "")), ""),
                seconds=float(getattr(metrics, "entire_frame_compile_time_s", None) or 0.0),
                recompile_reason=(getattr(metrics, "recompile_reason", None) or "")[:_LONGEST],
                graph_breaks=tuple(
                    str(reason)[:_LONGEST]
                    for reason in sorted(getattr(metrics, "restart_reasons", None) or ())
                ),
                failed=str(getattr(metrics, "fail_reason", None) or "")[:_LONGEST],
            )
        )
    return tuple(found)


def graph_breaks() -> dict[str, int]:
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    counted = utils.counters.get("graph_break", {})
    return {str(reason)[:_LONGEST]: int(times) for reason, times in list(counted.items())[:MOST]}

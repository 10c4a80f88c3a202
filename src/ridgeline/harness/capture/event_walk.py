"""Walks over the events of the traced steps while torch's profiler still has them. It collects what
the trace file does not hold: the lines of the user's code that made calls, and for each allocation
its address, its line and its phase."""

import os
import re
import sys
from array import array
from time import perf_counter
from typing import Any

from ridgeline.harness.capture.places import is_user_file
from ridgeline.records.run import CallSeen
from ridgeline.records.step_memory import (
    PHASES,
    LineRange,
    Stock,
    TracedAllocations,
    TracedPhase,
    TracedSpan,
)

MAX_WALK_S = 2.0
"""Time limit for the walk over the events: an event takes 5 µs, and the program waits meanwhile.
When the limit is reached, nothing is kept, because lines that were not yet found would look as if
they had not run."""
MAX_ALLOCATIONS_SHARE = 0.6
"""Allocations are given up after this share of the limit, so that at least the lines are known."""
MAX_LINES = 5_000
MAX_ALLOCATIONS = 200_000
"""Allocations and releases that are kept: 64 bytes each, until the file is written. Three steps of
GPT-2 have 12,000. With more, no memory by line is shown."""
MAX_MODULE_DEPTH = 8
_EVENTS_BETWEEN_CLOCKS = 4_096
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)")
_PYTHON = re.compile(r"\(\d+\): ([\w<>]+)$")
_MODULE = re.compile(r"^nn\.Module: (\w+?)(?:_\d+)?$")
_CODE: dict[TracedPhase, int] = {phase: code for code, phase in enumerate(PHASES)}
_OTHER = _CODE["other"]
_FORWARD = _CODE["forward"]
_STARTS: tuple[tuple[str, int], ...] = (
    ("Optimizer.step#", _CODE["optimizer"]),
    ("Optimizer.zero_grad#", _CODE["zero-grad"]),
    ("enumerate(DataLoader)#", _CODE["input"]),
    ("autograd::engine", _CODE["backward"]),
)
_STEP = "ProfilerStep#"
_ENTERS_MARK = "<built-in method _record_function_enter"
_IN_MARK = -2
"""In the place of an operator: the event below is a mark, which is a leaf of the tree although it
lasts until it is left."""

Context = tuple[int, int, int, int]
"""The codes of place, phase, module and operator that hold around an event."""


_Waiting = tuple[Any, Context, Any, Any]
"""An event with its context, its fields, and its caller if it is a call."""


def _fields(event: Any) -> tuple[Any, Any]:
    fields = event.typed[1]
    return fields, getattr(fields, "caller", None)


class Walk:
    """One walk over the events of `profiler` (torch's, now stopped)."""

    def __init__(self) -> None:
        self._files = _OwnFiles()
        self._calls: dict[tuple[str, int, str], int] = {}
        self._places = _Codes()
        self._modules = _Codes()
        self._operators = _Codes()
        self._devices = _Codes()
        self._rows = tuple(array("q") for _ in range(9))
        self._steps: list[int] = []
        self._spans: list[TracedSpan] = []
        self._ends_ns = 0
        self._calls_only = False
        self.complete = False

    def over(self, profiler: Any) -> "Walk":
        """Visit every event. If there are too many events, nothing is kept. Allocations are given
        up first."""
        begin: Context = (-1, _OTHER, -1, -1)
        roots = list(profiler.profiler.kineto_results.experimental_event_tree())
        waiting = self._with_lines(roots, begin)
        began, visited = perf_counter(), 0
        while waiting:
            event, context, fields, caller = waiting.pop()
            visited += 1
            if visited % _EVENTS_BETWEEN_CLOCKS == 0:
                spent_s = perf_counter() - began
                self._calls_only = spent_s > MAX_WALK_S * MAX_ALLOCATIONS_SHARE
                if spent_s > MAX_WALK_S:
                    return self
            children = event.children
            if self._calls_only:
                if caller is not None:
                    self._count_call(event, caller)
                waiting.extend((child, context, *_fields(child)) for child in children)
                continue
            if not children and hasattr(fields, "alloc_size"):
                self._allocation(event, fields, context)
                continue
            if caller is not None:  # only Python and built-in calls have it
                context = self._call(event, caller, context, bool(children))
            elif children or context[3] == _IN_MARK:
                context = self._operator(event, context)
            if children:
                waiting.extend(self._with_lines(children, context))
        self.complete = True
        return self

    def calls(self) -> tuple[CallSeen, ...]:
        """Return the calls that each line of the user's code made. Return nothing if the profiler
        knows no callers, or if there are too many events or lines."""
        if not self.complete or len(self._calls) > MAX_LINES:
            return ()
        return tuple(
            CallSeen(file=file, line=line, name=name, times=times)
            for (file, line, name), times in sorted(self._calls.items())
        )

    def allocations(
        self, before: tuple[Stock, ...], after: tuple[Stock, ...]
    ) -> TracedAllocations | None:
        """Return the allocations and releases; None if there are none, or too many."""
        count = len(self._rows[0])
        if not self.complete or self._calls_only or not count or count > MAX_ALLOCATIONS:
            return None
        # A release and an allocation of one instant stay in the order in which they were visited.
        order = sorted(range(count), key=self._rows[0].__getitem__)
        columns = [tuple(column[row] for row in order) for column in self._rows]
        return TracedAllocations(
            places=tuple(LineRange(*place) for place in self._places.values()),
            modules=tuple(" / ".join(path) for path in self._modules.values()),
            operators=tuple(self._operators.values()),
            devices=tuple(self._devices.values()),
            at_ns=columns[0], address=columns[1], bytes=columns[2], allocated=columns[3],
            device=columns[4], place=columns[5], module=columns[6], operator=columns[7],
            phase=columns[8],
            step_starts_ns=tuple(sorted(self._steps)),
            ends_ns=max(self._ends_ns, columns[0][-1]),
            spans=tuple(sorted(self._spans, key=lambda span: span.start_ns)),
            before=before,
            after=after,
        )  # fmt: skip

    def _allocation(self, event: Any, fields: Any, context: Context) -> None:
        if len(self._rows[0]) > MAX_ALLOCATIONS:
            return
        place, phase, module, operator = context
        device = self._devices[str(fields.device)]
        values = (
            event.start_time_ns, fields.ptr or 0, fields.alloc_size, fields.total_allocated, device,
            place, module, operator, phase,
        )  # fmt: skip
        for column, value in zip(self._rows, values, strict=True):
            column.append(value)

    def _call(self, event: Any, caller: Any, context: Context, has_children: bool) -> Context:
        place, phase, module, operator = context
        file = self._count_call(event, caller)
        name = event.name if has_children else ""
        if file:
            line = caller.line_number
            place = self._places[(file, line, line, caller.function_name)]
        if not has_children:
            return (place, phase, module, operator)
        if name.startswith(_ENTERS_MARK):
            return (place, phase, module, _IN_MARK)
        if name.startswith("nn.Module: "):
            path = self._modules.value(module) or ()
            kind = _callee(name)
            if len(path) < MAX_MODULE_DEPTH:
                module = self._modules[(*path, kind)]
            if phase == _OTHER:
                phase = _FORWARD
                self._span(event, phase, place)
        elif phase == _OTHER and "run_backward" in name:
            phase = _CODE["backward"]
            self._span(event, phase, place)
        return (place, phase, module, operator)

    def _count_call(self, event: Any, caller: Any) -> str:
        """Count a call that a line of the user's made. Return the line's file, or ""."""
        file = self._files[caller.file_name]
        callee = _callee(event.name) if file else ""
        if callee:
            key = (file, caller.line_number, callee)
            self._calls[key] = self._calls.get(key, 0) + 1
        return file

    def _operator(self, event: Any, context: Context) -> Context:
        place, phase, module, operator = context
        name = event.name
        if name.startswith(_STEP):
            self._step(event)
        elif phase == _OTHER:
            started = next((code for prefix, code in _STARTS if name.startswith(prefix)), None)
            if started is not None:
                phase = started
                self._span(event, phase, place)
        if operator < 0 and "::" in name and not name.startswith("autograd::"):
            operator = self._operators[name]
        return (place, phase, module, operator)

    def _with_lines(self, children: list[Any], context: Context) -> list[_Waiting]:
        """Return the children with their contexts, the first one last. An operator that a user's
        function runs without a call lies between the lines of the calls around it."""
        found: list[_Waiting] = [(child, context, *_fields(child)) for child in children]
        lines = [self._line(caller) for _, _, _, caller in found]
        if any(lines):
            earlier: Any = None
            before = [earlier := line or earlier for line in lines]
            following: Any = None
            for number in reversed(range(len(found))):
                following = lines[number] or following
                if lines[number] is not None:
                    continue
                first, last = before[number] or following, following or before[number]
                if first[0] == last[0] and first[2] == last[2] and first[1] <= last[1]:
                    place = self._places[(first[0], first[1], last[1], first[2])]
                    child, _, fields, caller = found[number]
                    found[number] = (child, (place, *context[1:]), fields, caller)
        found.reverse()
        return found

    def _line(self, caller: Any) -> tuple[str, int, str] | None:
        file = self._files[caller.file_name] if caller is not None else ""
        return (file, caller.line_number, caller.function_name) if file else None

    def _step(self, event: Any) -> None:
        self._steps.append(event.start_time_ns)
        self._ends_ns = max(self._ends_ns, event.end_time_ns)

    def _span(self, event: Any, phase: int, place: int) -> None:
        self._spans.append(TracedSpan(phase, event.start_time_ns, event.end_time_ns, place))


class _Codes(dict[Any, int]):
    """Gives each value a number, in order of appearance."""

    def __init__(self) -> None:
        super().__init__()
        self._values: list[Any] = []

    def __missing__(self, value: Any) -> int:
        self[value] = len(self._values)
        self._values.append(value)
        return self[value]

    def value(self, code: int) -> Any:
        return self._values[code] if code >= 0 else None

    def values(self) -> Any:
        return self._values


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
        self._own = [
            os.path.abspath(file) for file in named if isinstance(file, str) and is_user_file(file)
        ]

    def __missing__(self, name: str) -> str:
        ends = [file for file in self._own if file == name or file.endswith(f"/{name}")]
        self[name] = ends[0] if ends else ""
        return self[name]

"""The window: the time that every figure is about. It is chosen once and stated with the figures;
the last step is never dropped.

By default, the window is the activity of the device, from the first start to the last end. Other
tools can compute the same window, so that figures can be checked. With chosen steps ("3-5", or
"all"), it reaches from the mark of the first step to the end of the last step's device work.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import UsageError
from ridgeline.records.trace import Window
from ridgeline.trace.columns import Events
from ridgeline.trace.intervals import Spans, clip, covered, union
from ridgeline.trace.trace import Trace, once_per_trace


class Steps(NamedTuple):
    """The steps in order of time, as columns of equal length."""

    number: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    marked: bool = True
    """Whether the trace has marks of its steps; False if the optimizer's calls tell them."""

    def __len__(self) -> int:  # the number of steps, not of fields
        return len(self.start)

    def name(self, row: int) -> str:
        return f"{'ProfilerStep' if self.marked else 'step'}#{int(self.number[row])}"

    def at(self, ns: int) -> str:
        """Return the step that a moment lies in; "" outside of steps."""
        row = int(np.searchsorted(self.start, ns, side="right")) - 1
        return self.name(row) if row >= 0 and ns < self.end[row] else ""

    def chosen(self, wanted: str) -> "Steps":
        """Return the steps of "3-5", "4", "17,19" or "all"; raise UsageError where the trace has
        none of them."""
        if wanted == "all":
            return self
        numbers: set[int] = set()
        for part in wanted.split(","):
            match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
            if not match:
                raise UsageError(f"--steps {wanted}: {part!r} is no step", "write 3, 3-5 or 3,7")
            low, high = int(match[1]), int(match[2] or match[1])
            numbers.update(n for n in self.number.tolist() if low <= n <= high)
        rows = np.isin(self.number, list(numbers))
        if not rows.any():
            available = "no step marks"
            if len(self):
                low, high = int(self.number.min()), int(self.number.max())
                available = f"steps {low} to {high}" if high > low else f"step {low} only"
            raise UsageError(f"--steps {wanted}: the trace has {available}")
        return self.take(rows)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "Steps":
        return Steps(self.number[rows], self.start[rows], self.end[rows], self.marked)


def window_of(trace: Trace, wanted: str | None = None) -> Window:
    steps = steps_of(trace)
    if wanted == "all" and not len(steps):
        wanted = None
    if wanted is not None:
        return _of_steps(trace, steps, steps.chosen(wanted), wanted)
    device = trace.device
    if len(device):
        start, end = int(device.ts.min()), int(device.end.max())
        inside = (steps.end > start) & (steps.start < end)
        return Window(
            start_ns=start, end_ns=end, basis="device activity", steps=int(inside.sum()),
            note=_edges(steps, start, end),
        )  # fmt: skip
    tables = [t for t in (trace.ops, trace.calls, trace.annotations, trace.frames) if len(t)]
    if not tables:
        return Window(start_ns=0, end_ns=0, basis="nothing: no timed work in the trace")
    start = min(int(t.ts.min()) for t in tables)
    end = max(int(t.end.max()) for t in tables)
    return Window(
        start_ns=start, end_ns=end, basis="host activity (no device work)", steps=len(steps),
        note=_unmarked(steps),
    )  # fmt: skip


def _of_steps(trace: Trace, steps: Steps, chosen: Steps, wanted: str) -> Window:
    start, end = int(chosen.start[0]), int(chosen.end[-1])
    after = steps.start[steps.start >= end]
    limit = int(after[0]) if len(after) else None
    device = trace.device
    if len(device) and limit is None:  # the last step: its work runs on after the mark
        end = max(end, int(device.end.max()))
    plural = "step" if len(chosen) == 1 else "steps"
    holes = int(np.diff(chosen.number).max(initial=1)) > 1
    return Window(
        start_ns=start, end_ns=end, steps=len(chosen),
        basis=f"all {plural}" if wanted == "all" else f"{plural} {wanted}", by_steps=True,
        note="steps between the chosen ones are inside" if holes else "",
    )  # fmt: skip


def _edges(steps: Steps, start: int, end: int) -> str:
    """Return a note on the time by which the window and the step marks differ."""
    if not len(steps) or not steps.marked:
        return _unmarked(steps)
    lead = start - int(steps.start[0])
    over = end - int(steps.end[-1])
    notes = []
    if lead > 0:
        notes.append(
            f"the first step began {lead / 1e6:.3f} ms before the first device work "
            "(--steps all includes it)"
        )
    if over > 0:
        notes.append(f"the last step's device work ran {over / 1e6:.3f} ms past its mark")
    return "; ".join(notes)


def _unmarked(steps: Steps) -> str:
    """Return a note on what counts as a step in a trace without step marks."""
    if not len(steps):
        return "no step is marked: the whole window counts as one step"
    if not steps.marked:
        return "no step is marked: the optimizer's calls end the steps"
    return ""


_MARK = re.compile(r"ProfilerStep#(\d+)$")
_OPTIMIZER_CALL = re.compile(r"Optimizer\.step#")
MAX_CALLS_PER_STEP = 8
"""The most optimizer calls that one step is taken to make: two for a GAN, five for a critic."""
MIN_REPEATED_SHARE = 0.8
"""Share of the optimizer's calls that must be like those a period earlier. Before the others, the
program may evaluate or save a checkpoint."""
MAX_OPERATORS_DIFFERENCE = 0.15
"""Calls are alike if the numbers of operators before them differ by this share at most: to log a
loss takes three operators, and a small step has thirty."""


@once_per_trace
def steps_of(trace: Trace) -> Steps:
    """Return the marked steps. If none is marked, each step ends with a call of the optimizer, of
    which `profile()` without a schedule leaves a span, while it leaves no step mark."""
    steps = marked_steps(trace)
    return steps if len(steps) else _steps_by_optimizer(trace)


def _steps_by_optimizer(trace: Trace) -> Steps:
    spans, ops = trace.annotations, trace.ops
    called = trace.names_where(spans.name, lambda n: _OPTIMIZER_CALL.match(n) is not None)
    calls = spans.take(np.flatnonzero(called))
    if len(calls):
        calls = calls.take(np.flatnonzero(calls.lane == np.bincount(calls.lane).argmax()))
    # a call in another one, of an optimizer that wraps a second, ends no step
    outer = calls.end >= np.maximum.accumulate(calls.end) if len(calls) else np.empty(0, np.bool_)
    calls = calls.take(np.flatnonzero(outer))
    ends = calls.end
    if len(ends) < 2 or not len(ops):
        nothing = np.empty(0, np.int64)
        return Steps(nothing, nothing, nothing, marked=False)
    before = np.diff(np.searchsorted(ops.ts, ends, side="right"))
    period = _period(before, calls.name[1:])
    ends = ends[period - 1 :: period]
    starts = np.append(min(int(ops.ts[0]), int(spans.ts.min())), ends[:-1])
    return Steps(np.arange(len(ends), dtype=np.int64), starts, ends, marked=False)


def _period(operators: NDArray[np.int64], name: NDArray[np.int32]) -> int:
    """Return after how many calls the optimizers and the numbers of operators before them repeat:
    two in a GAN, whose discriminator and generator have an optimizer each."""
    for period in range(1, min(MAX_CALLS_PER_STEP, len(operators) // 2) + 1):
        now, earlier = operators[period:], operators[:-period]
        alike = np.abs(now - earlier) <= MAX_OPERATORS_DIFFERENCE * np.maximum(now, earlier)
        if np.mean(alike & (name[period:] == name[:-period])) >= MIN_REPEATED_SHARE:
            return period
    return 1


@once_per_trace
def marked_steps(trace: Trace) -> Steps:
    """Return each step mark once, also if several threads have it."""
    spans = trace.annotations
    marked = np.flatnonzero(trace.names_where(spans.name, lambda n: _MARK.match(n) is not None))
    longest_mark: dict[int, int] = {}
    for row in marked.tolist():
        match = _MARK.match(trace.text(int(spans.name[row])))
        assert match is not None
        number = int(match[1][:18])
        if number not in longest_mark or spans.dur[row] > spans.dur[longest_mark[number]]:
            longest_mark[number] = row
    rows = np.array(sorted(longest_mark.values()), np.int64)
    numbers = np.array(sorted(longest_mark, key=longest_mark.__getitem__), np.int64)
    return Steps(numbers, spans.ts[rows], spans.end[rows])


@once_per_trace
def step_spans(trace: Trace, window: Window) -> Spans:
    """Return the steps inside the window, without the time between two marks (the profiler's own
    bookkeeping, 0.1 ms). If there are none, return the window; where there is device work,
    the time before the window in which this work was launched is included."""
    marks = steps_of(trace)
    spans = clip(union(marks.start, marks.end), window.start_ns, window.end_ns)
    if len(spans):
        return spans
    start = window.start_ns
    if len(trace.device) and len(trace.ops):
        start = min(start, int(trace.ops.ts[0]))
    return union(np.array([start]), np.array([window.end_ns]))


def started(table: Events, spans: Spans) -> NDArray[np.bool_]:
    """Return which rows start in one of the spans."""
    return covered(spans, table.ts, table.ts + 1) > 0


def rows_in(table: Events, window: Window) -> NDArray[np.int64]:
    """Return the numbers of the rows that start in the window. Tables are ordered by start, so
    these rows are neighbours."""
    first, last = np.searchsorted(table.ts, [window.start_ns, window.end_ns], side="left")
    return np.arange(first, max(first, last), dtype=np.int64)


MAX_EVENTS = 250_000
"""Findings are drawn from a part of a trace with more events."""
MIN_STEPS = 5
"""The part has this many steps, however many events they have: fewer say little of what varies."""


def middle_part(trace: Trace) -> tuple[Trace, str] | None:
    """Return the middle part of a long trace, and its steps as `--steps` takes them; None where the
    whole is short enough, or has too few marks to be cut."""
    events, steps = trace.origin.events, marked_steps(trace)
    wanted = max(MIN_STEPS, len(steps) * MAX_EVENTS // max(events, 1))
    if events <= MAX_EVENTS or len(steps) < wanted + 2:
        return None
    first = (len(steps) - wanted) // 2
    last = first + wanted - 1
    # one more step on either side: work is launched ahead, and runs on after its mark
    start, end = int(steps.start[first - 1]), int(steps.end[last + 1])

    def load(name: str) -> Events:
        table: Events = getattr(trace, name)
        return table.take(np.flatnonzero((table.ts < end) & (table.end > start)))

    part = Trace(trace.origin, trace.metadata, trace.texts, trace.lanes, load)
    return part, f"{int(steps.number[first])}-{int(steps.number[last])}"

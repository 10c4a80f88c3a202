"""The steps a program marked (`prof.step()`), as the host saw them."""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import UsageError
from ridgeline.trace.trace import Trace

_MARK = re.compile(r"ProfilerStep#(\d+)$")


class Steps(NamedTuple):
    """Marks in order of time; equally long columns."""

    number: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def __len__(self) -> int:  # the number of steps, not of fields
        return len(self.start)

    def name(self, row: int) -> str:
        return f"ProfilerStep#{int(self.number[row])}"

    def at(self, ns: int) -> str:
        """The step a moment lies in; "" outside."""
        row = int(np.searchsorted(self.start, ns, side="right")) - 1
        return self.name(row) if row >= 0 and ns < self.end[row] else ""

    def chosen(self, wanted: str) -> "Steps":
        """Those of "3-5", "4", "17,19" or "all"; a UsageError where none is in the trace."""
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
            held = "no step marks"
            if len(self):
                low, high = int(self.number.min()), int(self.number.max())
                held = f"steps {low} to {high}" if high > low else f"step {low} only"
            raise UsageError(f"--steps {wanted}: the trace has {held}")
        return Steps(self.number[rows], self.start[rows], self.end[rows])


def steps_of(trace: Trace) -> Steps:
    """Each mark once, even where several threads carry it."""
    spans = trace.annotations
    marked = np.flatnonzero(trace.names_where(spans.name, lambda n: _MARK.match(n) is not None))
    seen: dict[int, int] = {}
    for row in marked.tolist():
        match = _MARK.match(trace.text(int(spans.name[row])))
        assert match is not None
        number = int(match[1][:18])
        if number not in seen or spans.dur[row] > spans.dur[seen[number]]:
            seen[number] = row
    rows = np.array(sorted(seen.values()), np.int64)
    numbers = np.array(sorted(seen, key=seen.__getitem__), np.int64)
    return Steps(numbers, spans.ts[rows], spans.end[rows])

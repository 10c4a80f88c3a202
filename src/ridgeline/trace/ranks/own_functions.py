"""How long each rank is in each of the user's own functions, side by side.

An all-reduce makes all ranks' steps equally long. Where the main thread was outside of collectives
still tells them apart: a rank that is late spends its time in a function the others are not in.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median

import numpy as np
from msgspec.structs import replace

from ridgeline.records.collective_site import RankPlace
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.step_counts import step_spans
from ridgeline.trace.intervals import evenly_spread, subtract, union
from ridgeline.trace.links import Links
from ridgeline.trace.places import Places, place_of
from ridgeline.trace.ranks.collectives import collectives
from ridgeline.trace.trace import Trace

MOMENTS = 4000
"""Looked at in each rank's steps: 40 of them are a hundredth of the time."""
MAX_FUNCTIONS = 12
MIN_CALLEE_SHARE = 0.5
"""The smallest share of a function's time that one direct call must take to be named."""


def own_functions(
    traces: Sequence[Trace],
    links: Sequence[Links],
    windows: Sequence[Window],
    numbers: Sequence[int],
) -> tuple[RankPlace, ...]:
    """The largest differences first; nothing without Python stacks."""
    if len(traces) < 2:
        return ()
    seen = [_Seen(t, li, w) for t, li, w in zip(traces, links, windows, strict=True)]
    found = []
    for rank, own in enumerate(seen):
        for name, ns in own.spent.items():
            place = place_of(name)
            others = median(other.spent[name] for r, other in enumerate(seen) if r != rank)
            if place is not None and ns > others:
                one = RankPlace(rank=numbers[rank], place=place, ns=ns, others_ns=float(others))
                found.append((one, own, name))
    found.sort(key=lambda item: item[0].others_ns - item[0].ns)
    return tuple(own.described(one, name) for one, own, name in found[:MAX_FUNCTIONS])


class _Seen:
    """Where the main thread of one rank was in its steps, outside of collectives."""

    def __init__(self, trace: Trace, links: Links, window: Window) -> None:
        self._trace, self._places = trace, Places(trace, links)
        self._steps = step_spans(trace, window)
        self._moments, self._lane = np.empty(0, np.int64), links.main_lane
        self.spent: Counter[str] = Counter()
        """Nanoseconds a step, by the user's innermost function."""
        told = collectives(trace, links)
        waiting = union(told.start, told.end) if told.source == "host" else union(*_none())
        spans = subtract(self._steps, waiting)
        if not self._places.known or not spans.total:
            return
        self._moments = evenly_spread(spans, MOMENTS)
        lanes = np.full(len(self._moments), self._lane, np.int64)
        each = spans.total / len(self._moments) / max(window.steps, 1)
        codes, counts = np.unique(self._places.at(lanes, self._moments), return_counts=True)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            if code != -1:
                self.spent[self._places.text(code)] += round(count * each)

    def described(self, one: RankPlace, name: str) -> RankPlace:
        """Return the place with the function that it mostly calls, the function that calls it, and
        whether it holds the training loop."""
        frames = self._trace.frames
        own, callee = self._places.calls_at(self._lane, self._moments)
        here = np.flatnonzero(own >= 0)
        here = here[[self._trace.text(int(code)) == name for code in frames.name[own[here]]]]
        if not len(here):
            return one
        rows, counts = np.unique(own[here], return_counts=True)
        row = int(rows[counts.argmax()])
        caller = self._places.caller_of(row)
        first, last = self._steps.start[0], self._steps.end[-1]
        return replace(
            one,
            encloses_steps=bool(frames.ts[row] <= first and frames.end[row] >= last),
            callee=self._main_callee(callee[here]),
            caller=place_of(self._trace.text(int(frames.name[caller]))) if caller >= 0 else None,
        )

    def _main_callee(self, rows: np.ndarray) -> str:
        called: Counter[str] = Counter()
        kinds, counts = np.unique(rows[rows >= 0], return_counts=True)
        for row, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            called[self._trace.text(int(self._trace.frames.name[row]))] += count
        name, count = called.most_common(1)[0] if called else ("", 0)
        return name if count >= MIN_CALLEE_SHARE * len(rows) else ""


def _none() -> tuple[np.ndarray, np.ndarray]:
    return np.empty(0, np.int64), np.empty(0, np.int64)

"""How long one rank is in each phase of each traced step, and for how much of that time it waits
for other ranks.

An exchange of gradients makes the steps of all ranks equally long. The work of a rank outside of
that waiting still tells the ranks apart. It needs neither a common clock nor matched collectives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.collective_sites import computing_spans
from ridgeline.trace.analyses.driving import driving_lanes, on_lanes, time_of
from ridgeline.trace.analyses.phases import PhaseName, phase_spans
from ridgeline.trace.intervals import Spans, covered, intersect, subtract, union
from ridgeline.trace.links import Links
from ridgeline.trace.ranks.collectives import collectives
from ridgeline.trace.steps import steps_of
from ridgeline.trace.trace import Trace

PHASES: tuple[PhaseName, ...] = ("input", "forward", "backward", "optimizer", "other")
MIN_WAITING_SHARE = 0.05
"""A phase counts as a waiting phase if some rank waits in collectives for this share of it."""
MIN_SHARE_OF_WAITING = 0.05
"""A waiting phase must also hold this share of all waiting in collectives."""

Nanoseconds = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OwnTime:
    """The times of one rank. Each array has one value for each traced step."""

    rank: int
    length_ns: Nanoseconds
    phase_ns: dict[PhaseName, Nanoseconds]
    waiting_ns: dict[PhaseName, Nanoseconds]
    """The part of `phase_ns` in which a collective ran and this rank computed nothing."""

    def own_share(self, phase: PhaseName) -> float:
        """Return the share of the phase in which the rank did not wait; 1 for an empty phase."""
        total = int(self.phase_ns[phase].sum())
        return 1 - int(self.waiting_ns[phase].sum()) / total if total else 1.0


def own_time(trace: Trace, links: Links, window: Window, rank: int) -> OwnTime | None:
    """Return the times of the rank's phases, and of its waiting. Return None if the trace has no
    marked steps, or if its collectives ran on a device, where the host's phases do not show who
    waits."""
    found, marks = collectives(trace, links), steps_of(trace)
    inside = (marks.start >= window.start_ns) & (marks.end <= window.end_ns)
    if found.source != "host" or not inside.any():
        return None
    start, end = marks.start[inside], marks.end[inside]
    steps = union(start, end)
    waiting = subtract(union(found.start, found.end), computing_spans(trace, steps, False))
    spans = _phases(trace, links)
    phase_ns, waiting_ns = {}, {}
    for phase, span in spans.items():
        phase_ns[phase] = covered(span, start, end)
        waiting_ns[phase] = covered(intersect(span, waiting), start, end)
    length = end - start
    phase_ns["other"] = length - sum(phase_ns.values())
    waiting_ns["other"] = covered(waiting, start, end) - sum(waiting_ns.values())
    return OwnTime(rank, length, phase_ns, waiting_ns)


def waiting_phases(ranks: Sequence[OwnTime]) -> frozenset[PhaseName]:
    """Return the phases in which ranks wait for collectives. Phases with little waiting do not
    count: a worker thread may end a moment after the main thread goes on, and so reach into a phase
    that waits for nothing."""
    waited = {phase: sum(int(one.waiting_ns[phase].sum()) for one in ranks) for phase in PHASES}
    least = MIN_SHARE_OF_WAITING * sum(waited.values())
    return frozenset(
        phase
        for phase in PHASES
        if waited[phase] > least
        and any(one.own_share(phase) <= 1 - MIN_WAITING_SHARE for one in ranks)
    )


def _phases(trace: Trace, links: Links) -> dict[PhaseName, Spans]:
    """Return the phases as a run times them. Where stacks show the modules, only the modules count
    as forward. An exchange that the program asks for between two phases is in neither of them."""
    spans = phase_spans(trace, links)
    frames = trace.frames
    modules = trace.names_where(frames.name, lambda name: name.startswith("nn.Module: "))
    if len(frames) and modules.any():
        called = time_of(frames, modules & on_lanes(frames, driving_lanes(trace, links)))
        spans["forward"] = intersect(spans["forward"], called)
    return spans

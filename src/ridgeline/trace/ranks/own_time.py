"""Works out how long one rank is in each phase of each traced step, and for how much of that time
it waits for other ranks.

An exchange of gradients makes the steps of all ranks equally long. The work of a rank outside of
that waiting still tells the ranks apart. It needs neither a common clock nor matched collectives.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import median

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.records.sites import LateRank, RankPlace
from ridgeline.records.trace import Window
from ridgeline.trace.analyses.collective_sites import computing_spans
from ridgeline.trace.analyses.phases import PHASES, PhaseName, phase_spans
from ridgeline.trace.host_states import driving_lanes
from ridgeline.trace.intervals import (
    NOTHING,
    Spans,
    covered,
    evenly_spread,
    intersect,
    subtract,
    time_of,
    union,
)
from ridgeline.trace.links import Links
from ridgeline.trace.places import place_of, user_places
from ridgeline.trace.ranks.collectives import collectives
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import marked_steps, step_spans

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
    exchanges, steps_marked = collectives(trace, links), marked_steps(trace)
    inside = (steps_marked.start >= window.start_ns) & (steps_marked.end <= window.end_ns)
    if exchanges.source != "host" or not inside.any():
        return None
    start, end = steps_marked.start[inside], steps_marked.end[inside]
    steps = union(start, end)
    waiting = subtract(union(exchanges.start, exchanges.end), computing_spans(trace, steps, False))
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
    waited = {phase: sum(int(rank.waiting_ns[phase].sum()) for rank in ranks) for phase in PHASES}
    min_waited_ns = MIN_SHARE_OF_WAITING * sum(waited.values())
    return frozenset(
        phase
        for phase in PHASES
        if waited[phase] > min_waited_ns
        and any(rank.own_share(phase) <= 1 - MIN_WAITING_SHARE for rank in ranks)
    )


def _phases(trace: Trace, links: Links) -> dict[PhaseName, Spans]:
    """Return the phases as a run times them. Where stacks show the modules, only the modules count
    as forward. An exchange that the program asks for between two phases is in neither of them."""
    spans = phase_spans(trace, links)
    frames = trace.frames
    modules = trace.names_where(frames.name, lambda name: name.startswith("nn.Module: "))
    if len(frames) and modules.any():
        called = time_of(frames, modules & np.isin(frames.lane, driving_lanes(trace, links)))
        spans["forward"] = intersect(spans["forward"], called)
    return spans


MOMENTS = 4000
"""The number of moments of each rank at which the function is looked up: 40 of them are 1 % of the
time."""
MAX_FUNCTIONS = 12
MIN_CALLEE_SHARE = 0.5
"""The smallest share of a function's time that one direct call must take to be named."""


def own_functions(
    traces: Sequence[Trace],
    links: Sequence[Links],
    windows: Sequence[Window],
    numbers: Sequence[int],
) -> tuple[RankPlace, ...]:
    """Return the functions with the largest differences between ranks first; () without Python
    stacks."""
    if len(traces) < 2:
        return ()
    rank_moments = [
        _RankMoments(trace, trace_links, window)
        for trace, trace_links, window in zip(traces, links, windows, strict=True)
    ]
    differences = []
    for rank, own in enumerate(rank_moments):
        for name, ns in own.spent.items():
            place = place_of(name)
            others = median(other.spent[name] for r, other in enumerate(rank_moments) if r != rank)
            if place is not None and ns > others:
                rank_place = RankPlace(
                    rank=numbers[rank], place=place, ns=ns, others_ns=float(others)
                )
                differences.append((rank_place, own, name))
    differences.sort(key=lambda item: item[0].others_ns - item[0].ns)
    return tuple(
        own.described(rank_place, name) for rank_place, own, name in differences[:MAX_FUNCTIONS]
    )


class _RankMoments:
    """The functions in which the main thread of one rank was at evenly spread moments of its steps,
    outside of collectives."""

    def __init__(self, trace: Trace, links: Links, window: Window) -> None:
        self._trace, self._places = trace, user_places(trace, links)
        self._steps = step_spans(trace, window)
        self._moments, self._lane = np.empty(0, np.int64), links.main_lane
        self.spent: Counter[str] = Counter()
        """Nanoseconds in each step, by the user's innermost function."""
        exchanges = collectives(trace, links)
        is_timed = exchanges.source == "host"
        waiting = union(exchanges.start, exchanges.end) if is_timed else NOTHING
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

    def described(self, rank_place: RankPlace, name: str) -> RankPlace:
        """Return the place with the function that it mostly calls, the function that calls it, and
        whether it holds the training loop."""
        frames = self._trace.frames
        own, callee = self._places.calls_at(self._lane, self._moments)
        inside = np.flatnonzero(own >= 0)
        inside = inside[[self._trace.text(int(code)) == name for code in frames.name[own[inside]]]]
        if not len(inside):
            return rank_place
        rows, counts = np.unique(own[inside], return_counts=True)
        row = int(rows[counts.argmax()])
        caller = self._places.caller_of(row)
        first, last = self._steps.start[0], self._steps.end[-1]
        return replace(
            rank_place,
            encloses_steps=bool(frames.ts[row] <= first and frames.end[row] >= last),
            callee=self._main_callee(callee[inside]),
            caller=place_of(self._trace.text(int(frames.name[caller]))) if caller >= 0 else None,
        )

    def _main_callee(self, rows: np.ndarray) -> str:
        called: Counter[str] = Counter()
        kinds, counts = np.unique(rows[rows >= 0], return_counts=True)
        for row, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            called[self._trace.text(int(self._trace.frames.name[row]))] += count
        name, count = called.most_common(1)[0] if called else ("", 0)
        return name if count >= MIN_CALLEE_SHARE * len(rows) else ""


MIN_LATE_SHARE = 0.03
"""The smallest share of the step by which a rank must be behind the slowest other rank: ranks are
never exactly together."""
MIN_SHARE_OF_LATENESS = 0.75
"""The smallest share of all lateness that one rank must cause. Nine programs with equal ranks had
0.47 to 0.64 on a busy machine; fourteen with a slow rank had 0.89 to 1."""
OUTLIER_SHARE = 0.05
"""The share of the steps that are left out as outliers, those with the largest differences. One
stall of the scheduler among forty steps does not make a rank late."""
MIN_STEPS = 8
"""Outliers are left out only if there are at least this many steps."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OwnSteps:
    """The steps of one rank, in nanoseconds."""

    rank: int
    index: NDArray[np.int64]
    length_ns: Floats
    own_ns: dict[str, Floats]
    """Time without waiting in collectives, by phase, one value for each step."""

    def at(self, index: NDArray[np.int64]) -> "OwnSteps":
        """Return only the steps with these numbers."""
        rows = np.flatnonzero(np.isin(self.index, index))
        own = {phase: ns[rows] for phase, ns in self.own_ns.items()}
        return OwnSteps(self.rank, self.index[rows], self.length_ns[rows], own)

    def total(self) -> Floats:
        total: Floats = np.sum([*self.own_ns.values(), np.zeros(len(self.index))], axis=0)
        return total


def late_by_steps(ranks: Sequence[OwnSteps]) -> LateRank | None:
    """Return the one rank that keeps the others waiting in the steps that all ranks have; None if
    there is no such rank."""
    if len(ranks) < 2:
        return None
    shared = reduce(np.intersect1d, [rank.index for rank in ranks])
    if not len(shared):
        return None
    ranks = [rank.at(shared) for rank in ranks]
    behind = _behind(ranks)
    late = int(np.maximum(behind, 0).mean(axis=1).argmax())
    kept = _without_outliers(behind[late])
    lateness = np.maximum(behind[:, kept], 0).mean(axis=1)
    step_ns = float(np.mean([rank.length_ns.mean() for rank in ranks]))
    if (
        lateness[late] < MIN_SHARE_OF_LATENESS * lateness.sum()
        or behind[late, kept].mean() < MIN_LATE_SHARE * step_ns
    ):
        return None
    phase, phase_ns = _longer_phase(ranks, late)
    return LateRank(
        rank=ranks[late].rank,
        late_ns=float(np.maximum(behind[late], 0).mean()),
        step_ns=step_ns,
        slowest_other_ns=max(
            float(other.total().mean()) for i, other in enumerate(ranks) if i != late
        ),
        share_of_lateness=float(lateness[late] / lateness.sum()),
        phase=phase,
        phase_ns=phase_ns,
        steps=len(shared),
        late_steps=int((behind[late] > 0).sum()),
    )


def _behind(ranks: Sequence[OwnSteps]) -> Floats:
    """Return how much longer each rank works in each step than the slowest of the others."""
    totals = np.array([rank.total() for rank in ranks])
    slowest_other = [np.delete(totals, row, axis=0).max(axis=0) for row in range(len(ranks))]
    difference: Floats = totals - np.array(slowest_other)
    return difference


def _without_outliers(behind: Floats) -> NDArray[np.int64]:
    """Return the indices of the steps that count. If there are enough steps, those with the largest
    differences are left out."""
    outliers = math.ceil(OUTLIER_SHARE * len(behind)) if len(behind) >= MIN_STEPS else 0
    return np.argsort(np.abs(behind))[: len(behind) - outliers]


def _longer_phase(ranks: Sequence[OwnSteps], late: int) -> tuple[str, float]:
    """Return the phase in which the late rank works longer than the others, and by how much."""

    def mean(rank: OwnSteps, phase: str) -> float:
        return float(rank.own_ns[phase].mean()) if phase in rank.own_ns else 0.0

    others = [rank for row, rank in enumerate(ranks) if row != late]
    longer = {
        phase: mean(ranks[late], phase) - float(np.median([mean(rank, phase) for rank in others]))
        for phase in ranks[late].own_ns
    }
    phase = max(longer, key=lambda name: longer[name])
    return phase, longer[phase]

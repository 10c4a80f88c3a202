"""Who the others waited for, and what that rank did meanwhile.

An all-reduce inside backward makes every rank's backward equally long: the step times hide the
slow one. Its arrival at the collective does not: the time from when half of the others were there
to when it came is its own, and its own kernels and calls in that time say why.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.intervals import union
from ridgeline.trace.links import Links
from ridgeline.trace.ranks.align import Alignment
from ridgeline.trace.ranks.collectives import Collectives
from ridgeline.trace.ranks.doing import BEFORE, HOST, NOWHERE, doing
from ridgeline.trace.ranks.waiting import Waits
from ridgeline.trace.trace import Trace

LEAST_NS = 5_000
"""Arrivals nearer than this are together: ends of one collective differ by as much."""
MOST_NAMES = 8
"""Kept of what a late rank did."""
_PHASE = re.compile(r" in (backward|input|optimizer)(?: of .*)?$")


@dataclass(frozen=True, slots=True)
class Late:
    """One rank's part in what the others waited."""

    count: int = 0
    caused_ns: int = 0
    doing: tuple[tuple[str, int], ...] = ()


def threshold(alignment: Alignment) -> int:
    """Skew below it cannot be told from the error of the alignment."""
    return max(LEAST_NS, 3 * alignment.residual_ns)


def lateness(
    traces: Sequence[Trace],
    links: Sequence[Links],
    ranks: Sequence[Collectives],
    found: Waits,
    alignment: Alignment,
) -> tuple[Late, ...]:
    least = threshold(alignment)
    told = []
    for r, one in enumerate(ranks):
        late = np.flatnonzero((found.late == r) & (found.skew >= least))
        if not len(late):
            told.append(Late())
            continue
        others = np.delete(found.start[late], r, axis=1)
        there = np.delete(found.table[late], r, axis=1) >= 0
        # absent ranks sort last; the upper middle: from then on at least half were waiting
        ordered = np.sort(np.where(there, others, np.iinfo(np.int64).max), axis=1)
        waiting = ordered[np.arange(len(late)), there.sum(axis=1) // 2]
        waiting = np.minimum(waiting, found.last[late])
        spans = union(waiting - alignment.offset_ns[r], found.last[late] - alignment.offset_ns[r])
        lanes, counts = np.unique(one.lane[found.table[late, r]], return_counts=True)
        threads = [int(lane) for lane in lanes[np.argsort(-counts)] if lane >= 0]
        did = doing(traces[r], links[r], spans, threads)
        told.append(Late(len(late), int(found.caused[late].sum()), did))
    return tuple(told)


def sentence(late: Sequence[Late], labels: Sequence[str], found: Waits) -> str:
    """Who was late, how often, what it cost and what it did."""
    if not len(found):
        return ""
    most = max(range(len(late)), key=lambda r: late[r].caused_ns)
    if not late[most].count:
        skew = _time(int(found.skew.max()))
        return f"no rank was late: arrivals in {len(found)} collectives differ by {skew} at most"
    total = sum(one.caused_ns for one in late)
    joined = int((found.table[:, most] >= 0).sum())
    said = (
        f"{labels[most]} joined last in {late[most].count} of {joined} "
        f"collective{'s' * (joined != 1)}; "
        f"the others waited {_time(late[most].caused_ns)} for it, summed over ranks"
    )
    if late[most].caused_ns < total:
        said += f" ({100 * late[most].caused_ns / total:.0f} % of all waiting)"
    return said + what(late[most].doing)


def what(did: tuple[tuple[str, int], ...]) -> str:
    """What took most of the time it was late; where nothing took half, the largest part, and the
    phase or the idling that did together."""
    if not did:
        return ""
    (name, ns), total = did[0], sum(one for _, one in did)
    if ns * 2 > total:
        return f", mostly {_while(name)}"
    largest = f"the largest part of it ({100 * ns / total:.0f} %) {_while(name)}"
    taken, inside, whole = _together(did)
    if whole * 2 <= total:
        return f", {largest}"
    if inside:
        return f", mostly {taken}, {largest}"
    return f", {largest}; {100 * whole / total:.0f} % {taken}"


def _together(did: tuple[tuple[str, int], ...]) -> tuple[str, bool, int]:
    """The phase that took most, else the idling; whether the largest entry is of it; its time."""
    total = sum(one for _, one in did)
    phases: Counter[str] = Counter()
    for other, spent in did:
        if told := _PHASE.search(other):
            phases[told[1]] += spent
    phase, spent = phases.most_common(1)[0] if phases else ("", 0)
    first = did[0][0]
    if spent * 2 > total:
        largest = _PHASE.search(first)
        return f"in its {phase}", largest is not None and largest[1] == phase, spent
    idle = sum(spent for other, spent in did if other.startswith(HOST))
    return "while its device was idle", first.startswith(HOST), idle


def _while(name: str) -> str:
    if name == BEFORE:
        return name
    if name == NOWHERE:
        return "with nothing recorded"
    if name.startswith(HOST):
        return f"while its device was idle and its host in {name.removeprefix(HOST)}"
    return f"while it ran {name}"


def _time(ns: int) -> str:
    unit, value = next(
        ((u, ns / s) for u, s in (("s", 1e9), ("ms", 1e6)) if ns >= s), ("µs", ns / 1e3)
    )
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"

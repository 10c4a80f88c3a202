"""Gaps added up: causes with the user's lines, the longest gaps, a histogram."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Cause, Gap, Idle, IdleCause
from ridgeline.records.trust import Trust
from ridgeline.trace.analyses.idle import CAUSES, IdleGaps
from ridgeline.trace.analyses.idle_moments import Moments
from ridgeline.trace.intervals import Times
from ridgeline.trace.links import Links
from ridgeline.trace.steps import Steps
from ridgeline.trace.trace import Trace

MOST_GAPS = 1000


def idle(trace: Trace, links: Links, found: Sequence[IdleGaps], steps: Steps, trust: Trust) -> Idle:
    """The idle time of all devices of a trace."""
    if trust.confidence == "unreliable" or not found:
        why = trust.why or "the trace holds no device work"
        return Idle(trust=Trust(confidence="unreliable", why=why))
    moments = [Moments(trace, links, gaps) for gaps in found]
    total = sum(int(gaps.ns.sum()) for gaps in found)
    causes = [_cause(i, found, moments, total) for i in range(len(CAUSES))]
    return Idle(
        total_ns=total,
        causes=tuple(sorted((c for c in causes if c.ns), key=lambda c: -c.ns)),
        top=_top(found, moments, steps),
        gaps=sum(len(gaps.start) for gaps in found),
        histogram=_histogram(np.concatenate([gaps.dur for gaps in found])),
        trust=trust,
    )


def all_gaps(trace: Trace, links: Links, found: Sequence[IdleGaps], steps: Steps) -> Iterator[Gap]:
    """Every gap as a record, in order of time (for the annotated trace)."""
    for gaps in found:
        moments = Moments(trace, links, gaps)
        for row in range(len(gaps.start)):
            yield moments.gap(row, steps)


def _cause(
    index: int, found: Sequence[IdleGaps], moments: Sequence[Moments], total: int
) -> IdleCause:
    cause: Cause = CAUSES[index]
    ns = sum(int(gaps.ns[:, index].sum()) for gaps in found)
    lead = max(moments, key=lambda moment: int(moment.gaps.ns[:, index].sum()))
    places, says = lead.told(index)
    return IdleCause(
        cause=cause,
        ns=ns,
        share=ns / total if total else 0.0,
        gaps=sum(int((moment.dominant == index).sum()) for moment in moments),
        places=places,
        says=says,
    )


def _top(found: Sequence[IdleGaps], moments: Sequence[Moments], steps: Steps) -> tuple[Gap, ...]:
    picked = []
    for gaps, moment in zip(found, moments, strict=True):
        rows = np.argsort(-gaps.dur, kind="stable")[:MOST_GAPS]
        picked += [moment.gap(int(row), steps) for row in rows]
    return tuple(sorted(picked, key=lambda gap: -gap.dur_ns)[:MOST_GAPS])


def _histogram(dur: Times) -> tuple[tuple[int, int, int], ...]:
    """By power of ten, from a microsecond to the longest."""
    bounds: NDArray[np.int64] = 10 ** np.arange(3, 20, dtype=np.int64)[:16]
    bucket = np.searchsorted(bounds, dur, side="left")
    return tuple(
        (
            int(bounds[min(i, len(bounds) - 1)]),
            int((bucket == i).sum()),
            int(dur[bucket == i].sum()),
        )
        for i in np.unique(bucket).tolist()
    )

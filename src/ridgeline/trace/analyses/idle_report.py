"""Gaps added up: causes with the user's lines, the longest gaps, a histogram."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Cause, Gap, Idle, IdleCause, Place
from ridgeline.records.trust import Trust
from ridgeline.trace.analyses.idle import CAUSES, IdleGaps
from ridgeline.trace.columns import Events
from ridgeline.trace.host_states import sync_spans
from ridgeline.trace.intervals import Times
from ridgeline.trace.links import Links, Rows, enclosing, nested
from ridgeline.trace.places import Places, place_of
from ridgeline.trace.steps import Steps
from ridgeline.trace.trace import Trace

MOST_PLACES = 5
MOST_GAPS = 1000
NO_CALL = "no operator or call"


def idle(trace: Trace, links: Links, found: Sequence[IdleGaps], steps: Steps, trust: Trust) -> Idle:
    """The idle time of all devices of a trace."""
    if trust.confidence == "unreliable" or not found:
        why = trust.why or "the trace holds no device work"
        return Idle(trust=Trust(confidence="unreliable", why=why))
    moments = [_Moments(trace, links, gaps) for gaps in found]
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
        moments = _Moments(trace, links, gaps)
        for row in range(len(gaps.start)):
            yield moments.gap(row, steps)


class _Moments:
    """For each gap the moment that tells most of its cause, and what the host was in then."""

    def __init__(self, trace: Trace, links: Links, gaps: IdleGaps) -> None:
        self.trace, self.gaps = trace, gaps
        self.dominant = gaps.dominant  # found once: it looks at every gap
        self._places = Places(trace, links)
        self.waits = sync_spans(trace, links)
        self.lane, self.time = self._moments()
        self.place = self._where(links.main_lane)
        self.host = self._host(links)

    def _moments(self) -> tuple[Rows, Times]:
        """The wait's own start for a synchronisation, the request for what had been queued, else
        the middle of the part of the gap before the request."""
        gaps = self.gaps
        asked = np.where(gaps.launched >= 0, np.clip(gaps.launched, gaps.start, gaps.end), gaps.end)
        queued = (gaps.launched >= 0) & (asked == gaps.start)
        time = np.where(queued, gaps.launched, (gaps.start + asked) // 2)
        waited = (gaps.sync >= 0) & (self.dominant == CAUSES.index("synchronisation"))
        row = np.maximum(gaps.sync, 0)
        if not len(self.waits):
            return gaps.lane, time
        return (
            np.where(waited, self.waits.lane[row], gaps.lane),
            np.where(waited, self.waits.ts[row], time),
        )

    def _where(self, main: int) -> Rows:
        """The user's function; where the thread has no Python (backward's) the main one's."""
        place = self._places.at(self.lane, self.time)
        lost = np.flatnonzero((place == -1) & (self.lane != main))
        place[lost] = self._places.at(np.full(len(lost), main), self.time[lost])
        return place

    def _host(self, links: Links) -> Rows:
        """The code of what the host was in: a call, else an operator, else a named span."""
        at = Events(
            kind=np.zeros(len(self.time), np.uint8),
            ts=self.time,
            dur=np.zeros(len(self.time), np.int64),
            name=np.zeros(len(self.time), np.int32),
            lane=self.lane.astype(np.int32),
        )
        order = np.argsort(self.time, kind="stable")
        names = np.full(len(self.time), -1, np.int64)
        ordered = at.take(order)
        for table in (self._spans(), self.trace.ops, self.trace.calls):
            if len(table):
                above = links.op_parent if table is self.trace.ops else nested(table)
                row = enclosing(ordered, table, above)
                known = row >= 0
                names[order[known]] = table.name[row[known]]
        return names

    def _spans(self) -> Events:
        """Named spans that say something; that it was step 7 does not."""
        spans = self.trace.annotations
        marks = self.trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
        return spans.take(~marks)

    def where(self, row: int) -> Place | None:
        code = int(self.place[row])
        return None if code == -1 else place_of(self._places.text(code))

    def places(self, ns: Times) -> tuple[Place, ...]:
        """The user's functions by idle time charged."""
        codes, back = np.unique(self.place[ns > 0], return_inverse=True)
        totals = np.zeros(len(codes), np.int64)
        np.add.at(totals, back, ns[ns > 0])
        found = []
        for i in np.argsort(-totals, kind="stable")[: MOST_PLACES + 1].tolist():
            place = place_of(self._places.text(int(codes[i]))) if codes[i] != -1 else None
            if place is not None and totals[i] > 0:
                found.append(msgspec.structs.replace(place, ns=int(totals[i])))
        return tuple(found[:MOST_PLACES])

    def says(self, ns: Times) -> str:
        """What the host was in for most of it; "" where nothing was recorded."""
        codes, back = np.unique(self.host[ns > 0], return_inverse=True)
        totals = np.zeros(len(codes), np.int64)
        np.add.at(totals, back, ns[ns > 0])
        return self._said(int(codes[totals.argmax()])) if len(codes) else ""

    def _said(self, code: int) -> str:
        return self.trace.text(code) if code >= 0 else NO_CALL

    def gap(self, row: int, steps: Steps) -> Gap:
        gaps, names = self.gaps, self.trace.device.name
        before, after = int(gaps.previous_op[row]), int(gaps.next_op[row])
        return Gap(
            device=gaps.device,
            start_ns=int(gaps.start[row]),
            dur_ns=int(gaps.dur[row]),
            cause=CAUSES[int(self.dominant[row])],
            before=self.trace.text(int(names[before])) if before >= 0 else "",
            after=self.trace.text(int(names[after])) if after >= 0 else "",
            host=self._said(int(self.host[row])),
            place=self.where(row),
            step=steps.at(int(gaps.start[row])),
        )


def _cause(
    index: int, found: Sequence[IdleGaps], moments: Sequence[_Moments], total: int
) -> IdleCause:
    cause: Cause = CAUSES[index]
    ns = sum(int(gaps.ns[:, index].sum()) for gaps in found)
    lead = max(zip(found, moments, strict=True), key=lambda pair: int(pair[0].ns[:, index].sum()))
    charged = lead[0].ns[:, index]
    return IdleCause(
        cause=cause,
        ns=ns,
        share=ns / total if total else 0.0,
        gaps=sum(int((moment.dominant == index).sum()) for moment in moments),
        places=lead[1].places(charged) if ns else (),
        says=lead[1].says(charged) if charged.any() else "",
    )


def _top(found: Sequence[IdleGaps], moments: Sequence[_Moments], steps: Steps) -> tuple[Gap, ...]:
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

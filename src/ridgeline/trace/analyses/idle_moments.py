"""How a gap looked from the host: the moment that tells its cause, the user's line, the call."""

import msgspec
import numpy as np

from ridgeline.records.trace import Gap, Place
from ridgeline.trace.analyses.idle import CAUSES, IdleGaps
from ridgeline.trace.columns import Events
from ridgeline.trace.host_states import sync_spans
from ridgeline.trace.intervals import Times
from ridgeline.trace.links import Links, Rows, enclosing, nested
from ridgeline.trace.places import Places, place_of
from ridgeline.trace.steps import Steps
from ridgeline.trace.trace import Trace

MOST_PLACES = 5
NO_CALL = "no operator or call"
_SYNC = CAUSES.index("synchronisation")


class Moments:
    """For each gap of a device the moment that tells most of its largest cause."""

    def __init__(self, trace: Trace, links: Links, gaps: IdleGaps) -> None:
        self.trace, self.gaps, self._links = trace, gaps, links
        self.dominant = gaps.dominant  # found once: it looks at every gap
        self._places = Places(trace, links)
        self._waits = sync_spans(trace, links)
        lane, time = self._moments()
        self.place, self.host = self._where(lane, time), self._host(lane, time)

    def told(self, cause: int) -> tuple[tuple[Place, ...], str]:
        """The user's functions by idle time of that cause, and what the host was in for most."""
        rows = np.flatnonzero(self.gaps.ns[:, cause] > 0)
        place, host = self.place[rows], self.host[rows]
        aside = np.flatnonzero(self.dominant[rows] != cause)
        if len(aside):  # a lesser part of its gap: the gap's own moment tells of another cause
            lane, time = self._inside(cause, rows[aside])
            known = time >= 0
            place[aside] = np.where(known, self._where(lane, time), -1)
            host[aside] = np.where(known, self._host(lane, time), -1)
        ns = self.gaps.ns[rows, cause]
        return self._places_of(place, ns), self._most(host, ns)

    def gap(self, row: int, steps: Steps) -> Gap:
        gaps, names = self.gaps, self.trace.device.name
        before, after = int(gaps.previous_op[row]), int(gaps.next_op[row])
        code = int(self.place[row])
        return Gap(
            device=gaps.device,
            start_ns=int(gaps.start[row]),
            dur_ns=int(gaps.dur[row]),
            cause=CAUSES[int(self.dominant[row])],
            before=self.trace.text(int(names[before])) if before >= 0 else "",
            after=self.trace.text(int(names[after])) if after >= 0 else "",
            host=self._said(int(self.host[row])),
            place=None if code == -1 else place_of(self._places.text(code)),
            step=steps.at(int(gaps.start[row])),
        )

    def _moments(self) -> tuple[Rows, Times]:
        """The wait's own start for a synchronisation, the request for what had been queued, else
        the middle of the part of the gap before the request."""
        gaps = self.gaps
        asked = np.where(gaps.launched >= 0, np.clip(gaps.launched, gaps.start, gaps.end), gaps.end)
        queued = (gaps.launched >= 0) & (asked == gaps.start)
        time = np.where(queued, gaps.launched, (gaps.start + asked) // 2)
        waited = (gaps.sync >= 0) & (self.dominant == _SYNC)
        return self._at_waits(waited, gaps.sync, gaps.lane, time)

    def _at_waits(
        self,
        waited: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
        row: Rows,
        lane: Rows,
        time: Times,
    ) -> tuple[Rows, Times]:
        """The given moments, but for the waited ones the start of the wait."""
        if not len(self._waits):
            return lane, time
        at = np.maximum(row, 0)
        return (
            np.where(waited, self._waits.lane[at], lane),
            np.where(waited, self._waits.ts[at], time),
        )

    def _inside(self, cause: int, rows: Rows) -> tuple[Rows, Times]:
        """When the host first was in that cause within each gap; -1 where nothing tells."""
        gaps = self.gaps
        lane, start = gaps.lane[rows], gaps.start[rows]
        time = np.full(len(rows), -1, np.int64)
        name = CAUSES[cause]
        for one in np.unique(lane[lane >= 0]).tolist():
            spans = gaps.hosts.of(one).spans.get(name)
            mine = np.flatnonzero(lane == one)
            if spans is None or not len(spans):
                continue
            at = np.searchsorted(spans.end, start[mine], side="right")
            held = at < len(spans)
            begin = np.maximum(spans.start[np.minimum(at, len(spans) - 1)], start[mine])
            time[mine] = np.where(held & (begin < gaps.end[rows[mine]]), begin, -1)
        if name == "between kernels":
            time = gaps.launched[rows]
        if cause == _SYNC:
            return self._at_waits(gaps.sync[rows] >= 0, gaps.sync[rows], lane, time)
        return lane, time

    def _where(self, lane: Rows, time: Times) -> Rows:
        """The user's function; where the thread has no Python (backward's) the main one's."""
        main = self._links.main_lane
        place = self._places.at(lane, time)
        lost = np.flatnonzero((place == -1) & (lane != main))
        place[lost] = self._places.at(np.full(len(lost), main), time[lost])
        return place

    def _host(self, lane: Rows, time: Times) -> Rows:
        """The code of what the host was in: a call, else an operator, else a named span."""
        order = np.argsort(time, kind="stable")
        nothing = np.zeros(len(time), np.int64)
        moments = Events(
            kind=nothing.astype(np.uint8),
            ts=time[order],
            dur=nothing,
            name=nothing.astype(np.int32),
            lane=lane[order].astype(np.int32),
        )
        names = np.full(len(time), -1, np.int64)
        for table in (self._spans(), self.trace.ops, self.trace.calls):
            if len(table):
                above = self._links.op_parent if table is self.trace.ops else nested(table)
                row = enclosing(moments, table, above)
                known = row >= 0
                names[order[known]] = table.name[row[known]]
        return names

    def _spans(self) -> Events:
        """Named spans that say something; that it was step 7 does not."""
        spans = self.trace.annotations
        marks = self.trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
        return spans.take(~marks)

    def _places_of(self, place: Rows, ns: Times) -> tuple[Place, ...]:
        codes, totals = _summed(place, ns)
        found = []
        for i in np.argsort(-totals, kind="stable")[: MOST_PLACES + 1].tolist():
            told = place_of(self._places.text(int(codes[i]))) if codes[i] != -1 else None
            if told is not None:
                found.append(msgspec.structs.replace(told, ns=int(totals[i])))
        return tuple(found[:MOST_PLACES])

    def _most(self, host: Rows, ns: Times) -> str:
        codes, totals = _summed(host, ns)
        return self._said(int(codes[totals.argmax()])) if len(codes) else ""

    def _said(self, code: int) -> str:
        return self.trace.text(code) if code >= 0 else NO_CALL


def _summed(codes: Rows, ns: Times) -> tuple[Rows, Times]:
    found, back = np.unique(codes, return_inverse=True)
    totals = np.zeros(len(found), np.int64)
    np.add.at(totals, back, ns)
    return found, totals

"""Several ranks of one job, side by side: who worked, who waited, and for whom."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Ranks, RankTime, Trust, Window
from ridgeline.trace.intervals import Spans, clip, merge, subtract, union
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links
from ridgeline.trace.ranks.align import Alignment, align
from ridgeline.trace.ranks.collectives import Collectives, collectives, communication_rows
from ridgeline.trace.ranks.late import Late, lateness, sentence, threshold
from ridgeline.trace.ranks.matching import Matching, match
from ridgeline.trace.ranks.waiting import Waits, collective_rows, waits
from ridgeline.trace.trace import Trace

_MOST_EARLY_ENDS = 0.1
"""Share of collectives that may end before the last rank came; with more, doubt the alignment."""


def ranks(traces: Sequence[Trace], links: Sequence[Links], windows: Sequence[Window]) -> Ranks:
    """One trace a rank; links and windows in the same order."""
    if not traces:
        return Ranks()
    numbers, doubt = _numbers(traces)
    labels = [_label(t, n, doubt) for t, n in zip(traces, numbers, strict=True)]
    found = [collectives(t, link) for t, link in zip(traces, links, strict=True)]
    if len(traces) == 1 or not any(len(one) for one in found):
        why = "one trace: nothing to compare it with" if len(traces) == 1 else "no collectives"
        rows = [
            _rank(t, w, one, n, label)
            for t, w, one, n, label in zip(traces, windows, found, numbers, labels, strict=True)
        ]
        alone = sum(len(one) for one in found)
        return Ranks(ranks=tuple(rows), unmatched=alone, trust=_trust("unreliable", doubt, why))
    matching = match(found)
    alignment = align(found, matching)
    if not alignment.usable:
        return _apart(traces, windows, found, matching, alignment, numbers, labels, doubt)
    inside = [
        (one.start >= w.start_ns) & (one.start < w.end_ns)
        for one, w in zip(found, windows, strict=True)
    ]
    split = waits(found, matching.table, alignment, inside)
    late = lateness(traces, links, found, split, alignment)
    rows = [
        _rank(t, windows[r], found[r], numbers[r], labels[r], r, alignment, split, late[r])
        for r, t in enumerate(traces)
    ]
    return Ranks(
        ranks=tuple(rows),
        collectives=collective_rows(found, split, numbers, threshold(alignment)),
        matched=len(matching),
        unmatched=matching.unmatched,
        late=sentence(late, labels, split, alignment),
        trust=_trust(
            alignment.trust.confidence,
            doubt,
            alignment.trust.why,
            _missing(found, split),
            _impossible(split),
        ),
    )


def _apart(
    traces: Sequence[Trace],
    windows: Sequence[Window],
    found: Sequence[Collectives],
    matching: Matching,
    alignment: Alignment,
    numbers: Sequence[int],
    labels: Sequence[str],
    doubt: str,
) -> Ranks:
    """Ranks whose clocks could not be brought together: each for itself."""
    rows = [
        _rank(t, w, one, n, label)
        for t, w, one, n, label in zip(traces, windows, found, numbers, labels, strict=True)
    ]
    return Ranks(
        ranks=tuple(rows),
        matched=len(matching),
        unmatched=matching.unmatched,
        trust=_trust("unreliable", alignment.trust.why, doubt),
    )


def _rank(
    trace: Trace,
    window: Window,
    found: Collectives,
    number: int,
    label: str,
    place: int = 0,
    alignment: Alignment | None = None,
    split: Waits | None = None,
    late: Late = Late(),
) -> RankTime:
    busy, compute, communication = _times(trace, window, found)
    exposed = subtract(communication, compute).total
    aligned = alignment is not None and split is not None and alignment.aligned[place]
    return RankTime(
        rank=number,
        label=label,
        busy_ns=busy,
        idle_ns=None if busy is None else window.ns - busy,
        window_ns=window.ns,
        compute_ns=compute.total,
        communication_ns=communication.total,
        wait_ns=int(split.wait[:, place].sum()) if aligned and split else None,
        transfer_ns=int(split.transfer[:, place].sum()) if aligned and split else None,
        exposed_communication_ns=exposed,
        overlap=1 - exposed / communication.total if communication.total else 0.0,
        clock_offset_ns=alignment.offset_ns[place] if aligned and alignment else 0,
        late_count=late.count,
        caused_wait_ns=late.caused_ns,
        doing=late.doing,
    )


def _times(trace: Trace, window: Window, found: Collectives) -> tuple[int | None, Spans, Spans]:
    """Busy time, and the spans of computing and of communicating, clipped to the window."""
    device = trace.device
    if not len(device):
        asked = union(found.start, found.end) if found.source == "host" else union(*_EMPTY)
        ops = trace.ops
        return None, _clip(union(ops.ts, ops.end), window), _clip(asked, window)
    communicates = np.zeros(len(device), bool)
    communicates[communication_rows(trace)] = True
    computes = (device.kind == Kind.KERNEL) & ~communicates
    spans = [union(device.ts[m], device.end[m]) for m in (computes, communicates)]
    rest = ~computes & ~communicates
    busy = merge(*spans, union(device.ts[rest], device.end[rest]))
    return _clip(busy, window).total, _clip(spans[0], window), _clip(spans[1], window)


_EMPTY: tuple[NDArray[np.int64], NDArray[np.int64]] = (np.empty(0, np.int64), np.empty(0, np.int64))


def _clip(spans: Spans, window: Window) -> Spans:
    return clip(spans, window.start_ns, window.end_ns)


def _numbers(traces: Sequence[Trace]) -> tuple[list[int], str]:
    """Each trace's rank, and why it is its place in the list instead."""
    told = [trace.metadata.rank for trace in traces]
    known = [rank for rank in told if rank is not None]
    if len(known) < len(told):
        which = "no rank" if not known else f"{len(told) - len(known)} of {len(told)} have no rank"
        return list(range(len(told))), f"ranks numbered by order of the files: {which} in them"
    if len(set(known)) < len(known):
        return list(range(len(told))), "ranks numbered by order of the files: some share a rank"
    return known, ""


def _label(trace: Trace, number: int, doubt: str) -> str:
    return f"rank {number} ({trace.label})" if doubt else f"rank {number}"


def _missing(found: Sequence[Collectives], split: Waits) -> str:
    """Groups larger than the traces that were given: who was last may be missing."""
    if not len(split):
        return ""
    size = np.zeros(len(split), np.int64)
    for r, one in enumerate(found):
        here = split.table[:, r] >= 0
        size[here] = np.maximum(size[here], one.size[split.table[here, r]])
    fewer = int(((split.table >= 0).sum(axis=1) < size).sum())
    of = f"{fewer} of {len(split)} collectives"
    return f"not all ranks of {of} are given: the last to come may be missing" if fewer else ""


def _impossible(split: Waits) -> str:
    if split.early_ends <= _MOST_EARLY_ENDS * len(split):
        return ""
    return (
        f"{split.early_ends} of {len(split)} collectives end on a rank before the last has come: "
        "clocks drift, or they are not the same ones"
    )


def _trust(confidence: str, *reasons: str) -> Trust:
    why = "; ".join(reason for reason in reasons if reason)
    if confidence == "unreliable":
        return Trust(confidence="unreliable", why=why)
    return Trust(confidence="doubtful" if why else "good", why=why)

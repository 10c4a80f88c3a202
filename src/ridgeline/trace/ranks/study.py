"""Several ranks of one job, side by side: who worked, who waited, and for whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Ranks, RankTime, Trust, Window
from ridgeline.trace.intervals import NOTHING, Spans, clip, merge, subtract, union
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links
from ridgeline.trace.ranks.align import Alignment, align
from ridgeline.trace.ranks.collectives import Collectives, collectives, communication_rows
from ridgeline.trace.ranks.late import MOST_NAMES, Late, lateness, sentence, threshold
from ridgeline.trace.ranks.matching import match
from ridgeline.trace.ranks.waiting import Waits, collective_rows, waits
from ridgeline.trace.trace import Trace

_MOST_EARLY_ENDS = 0.1
"""Share of collectives that may end before the last rank came; with more, doubt the alignment."""


@dataclass(frozen=True, slots=True)
class _Share:
    """What comparing the ranks tells of one of them."""

    offset_ns: int
    wait_ns: int
    transfer_ns: int
    late: Late


def ranks(traces: Sequence[Trace], links: Sequence[Links], windows: Sequence[Window]) -> Ranks:
    """One trace a rank; links and windows in the same order."""
    if not traces:
        return Ranks()
    numbers, doubt = _numbers(traces)
    labels = [_label(t, n, doubt) for t, n in zip(traces, numbers, strict=True)]
    found = [collectives(t, link) for t, link in zip(traces, links, strict=True)]
    told = [
        partial(_rank, t, w, one, n, label)
        for t, w, one, n, label in zip(traces, windows, found, numbers, labels, strict=True)
    ]
    matching = match(found)
    alignment = align(found, matching)
    if not alignment.usable:
        alone = Trust(why="one trace: waiting shows only beside the other ranks")
        return Ranks(
            ranks=tuple(rank(None) for rank in told),
            matched=len(matching),
            unmatched=matching.unmatched,
            trust=alone if len(traces) == 1 else _trust("unreliable", alignment.trust.why, doubt),
        )
    split = waits(found, matching.table, alignment, _inside(found, windows))
    late = lateness(traces, links, found, split, alignment)
    shares = _shares(alignment, split, late)
    return Ranks(
        ranks=tuple(rank(share) for rank, share in zip(told, shares, strict=True)),
        collectives=collective_rows(found, split, numbers, threshold(alignment)),
        matched=len(matching),
        unmatched=matching.unmatched,
        late=sentence(late, labels, split),
        trust=_trust(
            alignment.trust.confidence,
            alignment.trust.why,
            doubt,
            _missing(found, split),
            _impossible(split),
        ),
    )


def _inside(found: Sequence[Collectives], windows: Sequence[Window]) -> list[NDArray[np.bool_]]:
    return [
        (one.start >= w.start_ns) & (one.start < w.end_ns)
        for one, w in zip(found, windows, strict=True)
    ]


def _shares(alignment: Alignment, split: Waits, late: Sequence[Late]) -> list[_Share | None]:
    """None for a rank that shares no collective with the others."""
    return [
        _Share(
            offset_ns=alignment.offset_ns[r],
            wait_ns=int(split.wait[:, r].sum()),
            transfer_ns=int(split.transfer[:, r].sum()),
            late=one,
        )
        if alignment.aligned[r]
        else None
        for r, one in enumerate(late)
    ]


def _rank(
    trace: Trace, window: Window, found: Collectives, number: int, label: str, share: _Share | None
) -> RankTime:
    busy, compute, communication = _times(trace, window, found)
    exposed = subtract(communication, compute).total
    late = share.late if share else Late()
    return RankTime(
        rank=number,
        label=label,
        busy_ns=busy,
        idle_ns=None if busy is None else window.ns - busy,
        window_ns=window.ns,
        compute_ns=compute.total,
        communication_ns=communication.total,
        wait_ns=share.wait_ns if share else None,
        transfer_ns=share.transfer_ns if share else None,
        exposed_communication_ns=exposed,
        overlap=1 - exposed / communication.total if communication.total else 0.0,
        clock_offset_ns=share.offset_ns if share else 0,
        late_count=late.count,
        caused_wait_ns=late.caused_ns,
        doing=late.doing[:MOST_NAMES],
    )


def _times(trace: Trace, window: Window, found: Collectives) -> tuple[int | None, Spans, Spans]:
    """Busy time, and the spans of computing and of communicating, clipped to the window."""
    device = trace.device
    if not len(device):
        ran = union(found.start, found.end) if found.source == "host" else NOTHING
        ops = trace.ops
        return None, _clip(union(ops.ts, ops.end), window), _clip(ran, window)
    communicates = np.zeros(len(device), bool)
    communicates[communication_rows(trace)] = True
    computes = (device.kind == Kind.KERNEL) & ~communicates
    spans = [union(device.ts[m], device.end[m]) for m in (computes, communicates)]
    rest = ~computes & ~communicates
    busy = merge(*spans, union(device.ts[rest], device.end[rest]))
    return _clip(busy, window).total, _clip(spans[0], window), _clip(spans[1], window)


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

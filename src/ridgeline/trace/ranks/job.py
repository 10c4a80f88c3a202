"""Whether files are ranks of one job at all: any trace can be put in a folder with any other."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.records.trace import Ranks, RankTime, Window
from ridgeline.records.trust import Check, Trust
from ridgeline.trace.analyses.busy import properties_of
from ridgeline.trace.columns import Kind
from ridgeline.trace.intervals import NOTHING, Spans, clip, merge, subtract, union
from ridgeline.trace.links import Links
from ridgeline.trace.ranks.collectives import (
    Collectives,
    Job,
    Matching,
    collectives,
    communication_rows,
    match,
    missing,
    nothing,
)
from ridgeline.trace.ranks.late import MAX_ACTIVITIES, Late, lateness, sentence, threshold
from ridgeline.trace.ranks.waiting import Alignment, Waits, align, collective_rows, waits
from ridgeline.trace.trace import Trace
from ridgeline.units import word_list


def strangers(traces: Sequence[Trace], shared: bool) -> tuple[Check, ...]:
    """Return the check that says what speaks against one job. `shared`: some collective is in two
    of the traces."""
    working = [trace for trace in traces if len(trace.device)] or list(traces)
    worlds = sorted({t.metadata.world_size for t in traces if t.metadata.world_size})
    numbers = Counter(t.metadata.rank for t in traces if t.metadata.rank is not None)
    again = [rank for rank, times in sorted(numbers.items()) if times > 1]
    names = Counter(name for trace in working for name in _device_names(trace) if name)
    # ranks of one size with numbers of their own may simply not have talked while recorded
    one = len(worlds) == 1 and sum(numbers.values()) == len(numbers) == len(traces) <= worlds[0]
    reasons = []
    if len(working) > 1 and not shared and not one:
        reasons.append("they share no collective")
    if len(names) > 1:
        reasons.append(f"their devices are {word_list([f'{n} × {d}' for d, n in names.items()])}")
    if len(worlds) > 1:
        reasons.append(f"they tell of jobs of {word_list([str(size) for size in worlds])} ranks")
    if again:
        which = word_list([f"{numbers[rank]} are rank {rank}" for rank in again])
        reasons.append(f"of the files {which}")
    if not reasons or len(traces) < 2:
        return ()
    claim = f"these do not look like ranks of one job: {'; '.join(reasons)}"
    return (Check(id="not-one-job", severity="warning", claim=claim, count=1, affects=("ranks",)),)


def _device_names(trace: Trace) -> list[str]:
    found = [properties_of(trace, int(device)) for device in np.unique(trace.device.device)]
    return [one.name for one in found if one is not None]


_MAX_EARLY_END_SHARE = 0.1
"""If a larger share of the collectives ends before the last rank came, the clocks are doubtful."""

_ALONE = Trust(why="one trace: waiting shows only beside the other ranks")
_MIN_SPLIT_SHARE = 0.5
"""A rank is called late only if this share of the time in collectives could be split. With the
first three of eight collectives lost on one rank, the wrong rank was named."""


def ranks(traces: Sequence[Trace], links: Sequence[Links], windows: Sequence[Window]) -> Ranks:
    """Compare ranks: one trace for each, with its links and its window in the same order."""
    return compared(traces, links, windows)[0]


def compared(
    traces: Sequence[Trace], links: Sequence[Links], windows: Sequence[Window]
) -> tuple[Ranks, tuple[Check, ...]]:
    """Return the ranks, and what speaks against their being ranks of one job."""
    if not traces:
        return Ranks(), ()
    numbers, labels, doubt = _named(traces)
    found = _measured_alike([collectives(t, link) for t, link in zip(traces, links, strict=True)])
    host_alone = not any(len(trace.device) for trace in traces)
    alone = [
        _rank_alone(trace, window, one, number, label, host_alone)
        for trace, window, one, number, label in zip(
            traces, windows, found, numbers, labels, strict=True
        )
    ]
    job = Job(
        numbers=None if doubt else tuple(numbers),
        world=max(trace.metadata.world_size or 0 for trace in traces),
    )
    matching = match(found, job)
    against = strangers(traces, shared=len(matching) > 0)
    alignment = align(found, matching, labels)
    absent = missing(matching.members, job) if len(matching) else ""
    doubts = (absent, _lacking(matching, labels), alignment.trust.why, doubt)
    common = Ranks(ranks=tuple(alone), matched=matching.matched, unmatched=matching.unmatched)
    if not alignment.usable:
        trust = _trust("unreliable", *doubts) if len(traces) > 1 else _ALONE
        return replace(common, trust=trust), against
    inside = [
        (one.start >= w.start_ns) & (one.start < w.end_ns)
        for one, w in zip(found, windows, strict=True)
    ]
    split = waits(found, matching.table[matching.whole], alignment, inside)
    late = lateness(traces, links, found, split, alignment)
    confidence = alignment.trust.confidence if matching.whole.any() else "unreliable"
    split_share = _split_share(found, split, inside)
    too_little = (
        f"what is split is {100 * split_share:.0f} % of the time in collectives: too little to "
        "name one"
    )
    is_too_little = 0 < split_share < _MIN_SPLIT_SHARE
    whole = replace(
        common,
        ranks=tuple(
            _rank_beside(rank, r, found, alignment, split, late[r])
            if alignment.aligned[r]
            else rank
            for r, rank in enumerate(alone)
        ),
        collectives=collective_rows(found, split, numbers, threshold(alignment)),
        late=sentence(late, labels, split) if split_share >= _MIN_SPLIT_SHARE else "",
        trust=_trust(confidence, *doubts, too_little if is_too_little else "", _impossible(split)),
    )
    return whole, against


def _split_share(
    found: Sequence[Collectives], split: Waits, inside: Sequence[NDArray[np.bool_]]
) -> float:
    """Return the share of all time in collectives, inside the windows, that could be split."""
    lasted = [(one.end - one.start)[one.together & w] for one, w in zip(found, inside, strict=True)]
    total = sum(int(ns.sum()) for ns in lasted)
    return int((split.wait + split.transfer).sum()) / total if total else 1.0


def _measured_alike(found: list[Collectives]) -> list[Collectives]:
    """Return only the collectives that were measured in the best way any rank has: calls cannot be
    aligned with kernels."""
    best = next((s for s in ("device", "host") if any(one.source == s for one in found)), None)
    return [one if best is None or one.source == best else nothing() for one in found]


def _rank_alone(
    trace: Trace, window: Window, found: Collectives, number: int, label: str, host_alone: bool
) -> RankTime:
    """Return what the trace of one rank says without the others."""
    busy, compute, communication = _times(trace, window, found, host_alone)
    exposed = subtract(communication, compute).total
    return RankTime(
        rank=number,
        label=label,
        busy_ns=busy,
        idle_ns=None if busy is None else window.ns - busy,
        window_ns=window.ns,
        compute_ns=compute.total,
        communication_ns=communication.total,
        exposed_communication_ns=exposed,
        overlap=1 - exposed / communication.total if communication.total else 0.0,
    )


def _rank_beside(
    rank: RankTime,
    r: int,
    found: Sequence[Collectives],
    alignment: Alignment,
    split: Waits,
    late: Late,
) -> RankTime:
    """Return the rank with what comparing it with the others tells: nothing, if it shares no
    collective with them. Its waiting is not known if it
    has collectives and none of them could be split."""
    if not alignment.aligned[r]:
        return rank
    is_known = bool((split.table[:, r] >= 0).any()) or not len(found[r])
    return replace(
        rank,
        wait_ns=int(split.wait[:, r].sum()) if is_known else None,
        transfer_ns=int(split.transfer[:, r].sum()) if is_known else None,
        clock_offset_ns=alignment.offset_ns[r],
        late_count=late.count,
        caused_wait_ns=late.caused_ns,
        doing=late.doing[:MAX_ACTIVITIES],
    )


def _times(
    trace: Trace, window: Window, found: Collectives, alone: bool
) -> tuple[int | None, Spans, Spans]:
    """Return the busy time, and the spans of computing and of communicating, clipped to the window.
    Operators of the host count as computing only where no rank has a device: beside kernels they
    launch."""
    device = trace.device
    if not len(device):
        ran = union(found.start, found.end) if found.source == "host" else NOTHING
        ops = trace.ops
        work = union(ops.ts, ops.end) if alone else NOTHING
        return None, _clip(work, window), _clip(ran, window)
    communicates = np.zeros(len(device), bool)
    communicates[communication_rows(trace)] = True
    computes = (device.kind == Kind.KERNEL) & ~communicates
    spans = [union(device.ts[m], device.end[m]) for m in (computes, communicates)]
    rest = ~computes & ~communicates
    busy = merge(*spans, union(device.ts[rest], device.end[rest]))
    return _clip(busy, window).total, _clip(spans[0], window), _clip(spans[1], window)


def _clip(spans: Spans, window: Window) -> Spans:
    return clip(spans, window.start_ns, window.end_ns)


def _named(traces: Sequence[Trace]) -> tuple[list[int], list[str], str]:
    """Return the rank and the name of each trace, and what speaks against these numbers."""
    told = [trace.metadata.rank for trace in traces]
    known = [rank for rank in told if rank is not None]
    if not known or len(set(known)) < len(known):
        why = "some share a rank" if known else "no rank in them"
        names = [f"rank {n} ({trace.label})" for n, trace in enumerate(traces)]
        return list(range(len(told))), names, f"ranks numbered by order of the files: {why}"
    # who has a number keeps it, the others come after and go by their file's name
    free = iter(range(max(known) + 1, max(known) + 1 + len(told)))
    numbers = [next(free) if rank is None else rank for rank in told]
    lacking = len(told) - len(known)
    why = f"{lacking} of {len(told)} files have no rank in them" if lacking else ""
    return numbers, [trace.label for trace in traces], why


def _lacking(matching: Matching, labels: Sequence[str]) -> str:
    """Return a sentence on collectives that a rank does not show, though it belongs to the group
    and its trace is here."""
    lacks = [f"{label} lacks {n}" for label, n in zip(labels, matching.lacks, strict=True) if n]
    if not lacks:
        return ""
    total = matching.matched + matching.unmatched
    return (
        f"{matching.unmatched} of {total} collectives are not on all ranks ({word_list(lacks)}): "
        "they are not split"
    )


def _impossible(split: Waits) -> str:
    if split.early_ends <= _MAX_EARLY_END_SHARE * len(split):
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

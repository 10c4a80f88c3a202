"""Whether files are ranks of one job at all: any trace can be put in a folder with any other."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

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


@dataclass(frozen=True, slots=True)
class _Share:
    """What comparing the ranks tells of one of them."""

    offset_ns: int
    wait_ns: int | None
    transfer_ns: int | None
    late: Late


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
    found = _alike([collectives(t, link) for t, link in zip(traces, links, strict=True)])
    host_alone = not any(len(trace.device) for trace in traces)
    told = [
        partial(_rank, _times(t, w, one, host_alone), w, n, label)
        for t, w, one, n, label in zip(traces, windows, found, numbers, labels, strict=True)
    ]
    job = Job(
        numbers=None if doubt else tuple(numbers),
        world=max(trace.metadata.world_size or 0 for trace in traces),
    )
    matching = match(found, job)
    against = strangers(traces, shared=len(matching) > 0)
    alignment = align(found, matching, labels)
    absent = missing(matching.members, job) if len(matching) else ""
    whys = (absent, _lacking(matching, labels), alignment.trust.why, doubt)
    common = Ranks(matched=matching.matched, unmatched=matching.unmatched)
    if not alignment.usable:
        trust = _trust("unreliable", *whys) if len(traces) > 1 else _ALONE
        return replace(common, ranks=tuple(rank(None) for rank in told), trust=trust), against
    inside = _inside(found, windows)
    split = waits(found, matching.table[matching.whole], alignment, inside)
    late = lateness(traces, links, found, split, alignment)
    shares = _shares(found, alignment, split, late)
    confidence = alignment.trust.confidence if matching.whole.any() else "unreliable"
    told_of = _told_of(found, split, inside)
    whole = replace(
        common,
        ranks=tuple(rank(share) for rank, share in zip(told, shares, strict=True)),
        collectives=collective_rows(found, split, numbers, threshold(alignment)),
        late=sentence(late, labels, split) if told_of >= _MIN_SPLIT_SHARE else "",
        trust=_trust(confidence, *whys, _untold(told_of), _impossible(split)),
    )
    return whole, against


def _told_of(
    found: Sequence[Collectives], split: Waits, inside: Sequence[NDArray[np.bool_]]
) -> float:
    """Return the share of all time in collectives, inside the windows, that could be split."""
    lasted = [(one.end - one.start)[one.together & w] for one, w in zip(found, inside, strict=True)]
    total = sum(int(ns.sum()) for ns in lasted)
    return int((split.wait + split.transfer).sum()) / total if total else 1.0


def _untold(told_of: float) -> str:
    if not 0 < told_of < _MIN_SPLIT_SHARE:
        return ""
    return (
        f"what is split is {100 * told_of:.0f} % of the time in collectives: too little to name one"
    )


def _alike(found: list[Collectives]) -> list[Collectives]:
    """Return only the collectives that were measured in the best way any rank has: calls cannot be
    aligned with kernels."""
    best = next((s for s in ("device", "host") if any(one.source == s for one in found)), None)
    return [one if best is None or one.source == best else nothing() for one in found]


def _inside(found: Sequence[Collectives], windows: Sequence[Window]) -> list[NDArray[np.bool_]]:
    return [
        (one.start >= w.start_ns) & (one.start < w.end_ns)
        for one, w in zip(found, windows, strict=True)
    ]


def _shares(
    found: Sequence[Collectives], alignment: Alignment, split: Waits, late: Sequence[Late]
) -> list[_Share | None]:
    """Return None for a rank that shares no collective with the others, and no times for a rank
    with collectives of which none could be split."""
    told: list[_Share | None] = []
    for r, one in enumerate(late):
        known = bool((split.table[:, r] >= 0).any()) or not len(found[r])
        share = _Share(
            offset_ns=alignment.offset_ns[r],
            wait_ns=int(split.wait[:, r].sum()) if known else None,
            transfer_ns=int(split.transfer[:, r].sum()) if known else None,
            late=one,
        )
        told.append(share if alignment.aligned[r] else None)
    return told


def _rank(
    times: tuple[int | None, Spans, Spans],
    window: Window,
    number: int,
    label: str,
    share: _Share | None,
) -> RankTime:
    busy, compute, communication = times
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

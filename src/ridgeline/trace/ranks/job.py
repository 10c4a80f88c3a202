"""Several traces compared as the ranks of one job, and whether they are ranks of one job at all: a
folder may hold any traces."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.records.facts import Check, Trust
from ridgeline.records.trace import Ranks, RankTime, Window
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
    no_collectives,
)
from ridgeline.trace.ranks.late import MAX_ACTIVITIES, Late, lateness, min_skew_ns, sentence
from ridgeline.trace.ranks.waiting import Alignment, Waits, align, collective_rows, waits
from ridgeline.trace.trace import Trace
from ridgeline.units import word_list


def same_job_checks(traces: Sequence[Trace], shared: bool) -> tuple[Check, ...]:
    """Return a check with the reasons why the traces do not look like ranks of one job; () if there
    is none. `shared`: whether some collective is in two of the traces."""
    working = [trace for trace in traces if len(trace.device)] or list(traces)
    worlds = sorted({t.metadata.world_size for t in traces if t.metadata.world_size})
    numbers = Counter(t.metadata.rank for t in traces if t.metadata.rank is not None)
    repeated_ranks = [rank for rank, times in sorted(numbers.items()) if times > 1]
    device_names = Counter(name for trace in working for name in _device_names(trace) if name)
    # ranks with different numbers and one world size may just not communicate while recorded
    is_numbered_job = (
        len(worlds) == 1 and sum(numbers.values()) == len(numbers) == len(traces) <= worlds[0]
    )
    reasons = []
    if len(working) > 1 and not shared and not is_numbered_job:
        reasons.append("they share no collective")
    if len(device_names) > 1:
        reasons.append(
            f"their devices are {word_list([f'{n} × {d}' for d, n in device_names.items()])}"
        )
    if len(worlds) > 1:
        reasons.append(f"they tell of jobs of {word_list([str(size) for size in worlds])} ranks")
    if repeated_ranks:
        which = word_list([f"{numbers[rank]} are rank {rank}" for rank in repeated_ranks])
        reasons.append(f"of the files {which}")
    if not reasons or len(traces) < 2:
        return ()
    claim = f"these do not look like ranks of one job: {'; '.join(reasons)}"
    return (Check(id="not-one-job", severity="warning", claim=claim, count=1, affects=("ranks",)),)


def _device_names(trace: Trace) -> list[str]:
    properties = [properties_of(trace, int(device)) for device in np.unique(trace.device.device)]
    return [
        device_properties.name for device_properties in properties if device_properties is not None
    ]


_MAX_EARLY_END_SHARE = 0.1
"""If a larger share of the collectives ends before the last rank came, the clocks are doubtful."""

_ONE_TRACE = Trust(why="one trace: waiting shows only beside the other ranks")
_MIN_SPLIT_SHARE = 0.5
"""A rank is called late only if this share of the time in collectives could be split. With the
first three of eight collectives lost on one rank, the wrong rank was named."""


def ranks(traces: Sequence[Trace], links: Sequence[Links], windows: Sequence[Window]) -> Ranks:
    """Compare ranks: one trace for each, with its links and its window in the same order."""
    return compared(traces, links, windows)[0]


def compared(
    traces: Sequence[Trace], links: Sequence[Links], windows: Sequence[Window]
) -> tuple[Ranks, tuple[Check, ...]]:
    """Return the ranks, and the check against their being ranks of one job."""
    if not traces:
        return Ranks(), ()
    numbers, labels, doubt = _named(traces)
    exchanges = _measured_alike([collectives(t, own) for t, own in zip(traces, links, strict=True)])
    is_host_only = not any(len(trace.device) for trace in traces)
    single_ranks = [
        _rank_alone(trace, window, exchange, number, label, is_host_only)
        for trace, window, exchange, number, label in zip(
            traces, windows, exchanges, numbers, labels, strict=True
        )
    ]
    job = Job(
        numbers=None if doubt else tuple(numbers),
        world=max(trace.metadata.world_size or 0 for trace in traces),
    )
    matching = match(exchanges, job)
    job_checks = same_job_checks(traces, shared=len(matching) > 0)
    alignment = align(exchanges, matching, labels)
    absent = missing(matching.members, job) if len(matching) else ""
    doubts = (absent, _missing_collectives_doubt(matching, labels), alignment.trust.why, doubt)
    common = Ranks(
        ranks=tuple(single_ranks), matched=matching.matched, unmatched=matching.unmatched
    )
    if not alignment.usable:
        trust = _trust("unreliable", *doubts) if len(traces) > 1 else _ONE_TRACE
        return replace(common, trust=trust), job_checks
    inside = [
        (exchange.start >= rank_window.start_ns) & (exchange.start < rank_window.end_ns)
        for exchange, rank_window in zip(exchanges, windows, strict=True)
    ]
    split = waits(exchanges, matching.table[matching.whole], alignment, inside)
    late = lateness(traces, links, exchanges, split, alignment)
    confidence = alignment.trust.confidence if matching.whole.any() else "unreliable"
    split_share = _split_share(exchanges, split, inside)
    too_little = (
        f"what is split is {100 * split_share:.0f} % of the time in collectives: too little to "
        "name one"
    )
    is_too_little = 0 < split_share < _MIN_SPLIT_SHARE
    whole = replace(
        common,
        ranks=tuple(
            _rank_compared(rank, r, exchanges, alignment, split, late[r])
            if alignment.aligned[r]
            else rank
            for r, rank in enumerate(single_ranks)
        ),
        collectives=collective_rows(exchanges, split, numbers, min_skew_ns(alignment)),
        late=sentence(late, labels, split) if split_share >= _MIN_SPLIT_SHARE else "",
        trust=_trust(
            confidence, *doubts, too_little if is_too_little else "", _early_ends_doubt(split)
        ),
    )
    return whole, job_checks


def _split_share(
    exchanges: Sequence[Collectives], split: Waits, inside: Sequence[NDArray[np.bool_]]
) -> float:
    """Return the share of all time in collectives, inside the windows, that could be split."""
    durations = [
        (exchange.end - exchange.start)[exchange.joins_ranks & in_window]
        for exchange, in_window in zip(exchanges, inside, strict=True)
    ]
    total = sum(int(ns.sum()) for ns in durations)
    return int((split.wait + split.transfer).sum()) / total if total else 1.0


def _measured_alike(exchanges: list[Collectives]) -> list[Collectives]:
    """Return the collectives of each rank, without those from a worse source than the best source
    of any rank: calls cannot be aligned with kernels."""
    best = next(
        (
            source
            for source in ("device", "host")
            if any(exchange.source == source for exchange in exchanges)
        ),
        None,
    )
    return [
        exchange if best is None or exchange.source == best else no_collectives()
        for exchange in exchanges
    ]


def _rank_alone(
    trace: Trace, window: Window, exchange: Collectives, number: int, label: str, is_host_only: bool
) -> RankTime:
    """Return the times of one rank that its own trace shows."""
    busy, compute, communication = _times(trace, window, exchange, is_host_only)
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


def _rank_compared(
    rank: RankTime,
    r: int,
    exchanges: Sequence[Collectives],
    alignment: Alignment,
    split: Waits,
    late: Late,
) -> RankTime:
    """Return the rank with the times that only the comparison shows; unchanged if it shares no
    collective with the others. Its waiting is unknown if none of its collectives could be split."""
    if not alignment.aligned[r]:
        return rank
    is_known = bool((split.table[:, r] >= 0).any()) or not len(exchanges[r])
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
    trace: Trace, window: Window, exchange: Collectives, is_host_only: bool
) -> tuple[int | None, Spans, Spans]:
    """Return the busy time, and the spans of computing and of communicating, clipped to the window.
    Operators of the host count as computing only if no rank has a device. With a device, they
    launch the work."""
    device = trace.device
    if not len(device):
        ran = union(exchange.start, exchange.end) if exchange.source == "host" else NOTHING
        ops = trace.ops
        work = union(ops.ts, ops.end) if is_host_only else NOTHING
        return None, _clip(work, window), _clip(ran, window)
    communicates = np.zeros(len(device), bool)
    communicates[communication_rows(trace)] = True
    computes = (device.kind == Kind.KERNEL) & ~communicates
    spans = [union(device.ts[chosen], device.end[chosen]) for chosen in (computes, communicates)]
    rest = ~computes & ~communicates
    busy = merge(*spans, union(device.ts[rest], device.end[rest]))
    return _clip(busy, window).total, _clip(spans[0], window), _clip(spans[1], window)


def _clip(spans: Spans, window: Window) -> Spans:
    return clip(spans, window.start_ns, window.end_ns)


def _named(traces: Sequence[Trace]) -> tuple[list[int], list[str], str]:
    """Return the rank and the name of each trace, and a doubt about these numbers or ""."""
    recorded = [trace.metadata.rank for trace in traces]
    known = [rank for rank in recorded if rank is not None]
    if not known or len(set(known)) < len(known):
        doubt = "some share a rank" if known else "no rank in them"
        names = [f"rank {n} ({trace.label})" for n, trace in enumerate(traces)]
        return list(range(len(recorded))), names, f"ranks numbered by order of the files: {doubt}"
    # files with a rank keep it; the others get the numbers after them, and are named by file
    free = iter(range(max(known) + 1, max(known) + 1 + len(recorded)))
    numbers = [next(free) if rank is None else rank for rank in recorded]
    lacking = len(recorded) - len(known)
    doubt = f"{lacking} of {len(recorded)} files have no rank in them" if lacking else ""
    return numbers, [trace.label for trace in traces], doubt


def _missing_collectives_doubt(matching: Matching, labels: Sequence[str]) -> str:
    """Return a sentence on the collectives that a trace lacks although its rank belongs to the
    group; "" if there are none."""
    lacks = [f"{label} lacks {n}" for label, n in zip(labels, matching.lacks, strict=True) if n]
    if not lacks:
        return ""
    total = matching.matched + matching.unmatched
    return (
        f"{matching.unmatched} of {total} collectives are not on all ranks ({word_list(lacks)}): "
        "they are not split"
    )


def _early_ends_doubt(split: Waits) -> str:
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

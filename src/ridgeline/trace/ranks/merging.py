"""The studies of several ranks added up to one study: rows by name, idle time by cause."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from ridgeline.records.facts import Check, Confidence, Trust
from ridgeline.records.trace import (
    CategoryRow,
    Idle,
    IdleCause,
    KernelRow,
    ModuleRow,
    OpRow,
    Overlap,
    Phase,
    Place,
    Ranks,
    Region,
    TraceStudy,
)
from ridgeline.trace.validation import trust_in
from ridgeline.trace.verdict import verdict
from ridgeline.units import rank_label_list

Row = TypeVar("Row", bound=Struct)
MAX_GAPS = 1000
MAX_PLACES = 5
MAX_DOUBTS = 3
"""The number of doubts that are written out. Further doubts are only counted."""
MIN_SHARE_IN_DOUBT = 0.5
"""A doubt about ranks with at least this share of the idle time is a doubt about the sum."""
OF_ONE_RANK = ("launch", "critical path", "roofline")
"""Sections that show one rank."""
OF_IDLE_TIME = ("idle", "idle causes", "overlap")
"""Sections that add up the ranks whose idle time is known."""


def merged(
    studies: Sequence[TraceStudy], across: Ranks, limit: int, job: Sequence[Check] = ()
) -> TraceStudy:
    """Return one study of all ranks. Sections that cannot be added up show the first rank and name
    it.

    `job` has the checks that doubt that these are ranks of one job.
    """
    kept = with_known_times(studies)
    first = kept[0]
    kernels = _with_shares(_kernels(s.kernels for s in studies), "total_ns")
    categories = _with_shares(_categories(s.categories for s in studies), "device_ns")
    ops = _with_shares(_ops(s.ops for s in studies), "device_self_ns", "host_self_ns")
    shapes = _with_shares(_ops(s.shapes for s in studies), "device_self_ns", "host_self_ns")
    modules = _modules(s.modules for s in studies)
    result = msgspec.structs.replace(
        first,
        files=tuple(f for s in studies for f in s.files),
        events=sum(s.events for s in studies),
        label=f"{len(kept)} of {len(studies)} ranks"
        if len(kept) < len(studies)
        else f"{len(studies)} ranks",
        window=max((s.window for s in kept), key=lambda window: window.ns),
        validation=(*job, *left_out(studies, kept), *_checks(studies, kept)),
        devices=tuple(d for s in kept for d in s.devices),
        idle=_idle(kept),
        launch=msgspec.structs.replace(first.launch, of=first.label),
        critical_path=msgspec.structs.replace(first.critical_path, of=first.label),
        regions=_regions(s.regions for s in studies),
        overlap=_overlap(kept),
        kernels=kernels[:limit],
        kernels_left_out=max(0, len(kernels) - limit),
        ops=ops[:limit],
        shapes=shapes[:limit],
        modules=modules[:limit],
        categories=categories,
        roofline=msgspec.structs.replace(
            first.roofline,
            rows=first.roofline.rows[:limit],
            device=f"{first.roofline.device} ({first.label})",
        ),
        phases=_phases([s.phases for s in studies]),
        memory=tuple(
            msgspec.structs.replace(curve, device=f"{s.label}, {curve.device}")
            for s in studies
            for curve in s.memory
        ),
        ranks=across,
        missing=tuple(dict.fromkeys(m for s in studies for m in s.missing)),
    )  # fmt: skip
    trust = trust_in("idle" if result.devices else "ops", result.validation)
    return msgspec.structs.replace(result, verdict=verdict(result), trust=trust)


def _checks(studies: Sequence[TraceStudy], kept: Sequence[TraceStudy]) -> tuple[Check, ...]:
    """Return the checks of all ranks, the gravest first, each with the ranks that it is about."""
    owners: dict[Check, list[TraceStudy]] = {}
    for study in studies:
        for check in study.validation:
            owners.setdefault(check, []).append(study)
    order = ("error", "warning", "note")
    result = []
    for check in sorted(owners, key=lambda check: order.index(check.severity)):
        labels = [study.label for study in owners[check]]
        ranks_named = "all" if len(labels) == len(studies) else rank_label_list(labels)
        same_id = [study for other in owners if other.id == check.id for study in owners[other]]
        affects = doubtful_sections(check.affects, same_id, studies, kept)
        result.append(
            msgspec.structs.replace(check, claim=f"{ranks_named}: {check.claim}", affects=affects)
        )
    return tuple(result)


def _group(rows: Iterable[Iterable[Row]], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    groups: dict[Hashable, list[Row]] = {}
    for many in rows:
        for row in many:
            groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _kernels(rows: Iterable[Iterable[KernelRow]]) -> list[KernelRow]:
    rows_merged = []
    for group in _group(rows, lambda row: row.name):
        count = sum(row.count for row in group)
        total = sum(row.total_ns for row in group)
        rows_merged.append(
            msgspec.structs.replace(
                group[0], count=count, total_ns=total, mean_ns=total / max(count, 1),
                least_ns=min(row.least_ns for row in group),
                most_ns=max(row.most_ns for row in group),
            )
        )  # fmt: skip
    return rows_merged


def _categories(rows: Iterable[Iterable[CategoryRow]]) -> list[CategoryRow]:
    return [_summed(g, "device_ns", "count") for g in _group(rows, lambda row: row.category)]


def _ops(rows: Iterable[Iterable[OpRow]]) -> list[OpRow]:
    columns = ("count", "host_ns", "host_self_ns", "device_ns", "device_self_ns")
    return [_summed(g, *columns) for g in _group(rows, lambda row: (row.name, row.shape))]


def _modules(rows: Iterable[Iterable[ModuleRow]]) -> tuple[ModuleRow, ...]:
    columns = ("count", "host_ns", "device_ns", "device_self_ns")
    rows_merged = [_summed(g, *columns) for g in _group(rows, lambda row: row.path)]
    total = sum(row.device_self_ns for row in rows_merged) or 1
    return tuple(msgspec.structs.replace(row, share=row.device_ns / total) for row in rows_merged)


def _regions(rows: Iterable[Iterable[Region]]) -> tuple[Region, ...]:
    columns = ("count", "host_ns", "device_ns", "operations")
    rows_merged = [_summed(g, *columns) for g in _group(rows, lambda row: (row.kind, row.name))]
    return tuple(sorted(rows_merged, key=lambda row: -max(row.device_ns, row.host_ns)))


def _phases(rows: Sequence[tuple[Phase, ...]]) -> tuple[Phase, ...]:
    rows_merged = [_summed(g, "host_ns", "device_ns") for g in _group(rows, lambda row: row.phase)]
    return _with_shares(rows_merged, "host_ns", ordered=False)


def _summed(group: list[Row], *columns: str) -> Row:
    sums = {column: sum(getattr(row, column) for row in group) for column in columns}
    return msgspec.structs.replace(group[0], **sums)


def _with_shares(rows: list[Row], *columns: str, ordered: bool = True) -> tuple[Row, ...]:
    """Return the rows with their shares of the first column that is not all zero."""
    column = next((c for c in columns if sum(getattr(r, c) for r in rows)), columns[0])
    total = sum(getattr(row, column) for row in rows) or 1
    rows_shared = [msgspec.structs.replace(row, share=getattr(row, column) / total) for row in rows]
    return tuple(
        sorted(rows_shared, key=lambda row: -getattr(row, column)) if ordered else rows_shared
    )


def _idle(studies: Sequence[TraceStudy]) -> Idle:
    """Return the idle time of all ranks; none if that of one rank is not known."""
    parts = [study.idle for study in studies]
    unknown = [(s.label, s.idle.trust, 1) for s in studies if s.idle.total_ns is None]
    if unknown:
        return Idle(trust=combined_trust(unknown, len(studies)))
    total = sum(part.total_ns or 0 for part in parts)
    causes = []
    for group in _group((part.causes for part in parts), lambda row: row.cause):
        lead = max(group, key=lambda row: row.ns)
        ns = sum(row.ns for row in group)
        causes.append(
            IdleCause(
                cause=lead.cause, ns=ns, share=ns / total if total else 0.0,
                gaps=sum(row.gaps for row in group), places=_places(group), says=lead.says,
            )
        )  # fmt: skip
    buckets: dict[int, tuple[int, int]] = {}
    for part in parts:
        for bound, count, ns in part.histogram:
            so_far = buckets.get(bound, (0, 0))
            buckets[bound] = (so_far[0] + count, so_far[1] + ns)
    return Idle(
        total_ns=total,
        causes=tuple(sorted(causes, key=lambda cause: -cause.ns)),
        top=tuple(sorted((g for p in parts for g in p.top), key=lambda g: -g.dur_ns)[:MAX_GAPS]),
        gaps=sum(part.gaps for part in parts),
        histogram=tuple((bound, *buckets[bound]) for bound in sorted(buckets)),
        trust=combined_trust(
            [(s.label, s.idle.trust, s.idle.total_ns or 0) for s in studies], len(studies)
        ),
    )


def _places(group: list[IdleCause]) -> tuple[Place, ...]:
    places = []
    for occurrences in _group(
        (row.places for row in group), lambda p: (p.file, p.line, p.function)
    ):
        places.append(
            msgspec.structs.replace(occurrences[0], ns=sum(place.ns for place in occurrences))
        )
    return tuple(sorted(places, key=lambda place: -place.ns)[:MAX_PLACES])


def _overlap(studies: Sequence[TraceStudy]) -> Overlap:
    parts = [(study.label, study.overlap.trust, study.window.ns) for study in studies]
    columns = ("both_ns", "host_ns", "device_ns", "neither_ns")
    summed = _summed([study.overlap for study in studies], *columns)
    return msgspec.structs.replace(summed, trust=combined_trust(parts, len(studies)))


def with_known_times(studies: Sequence[TraceStudy]) -> list[TraceStudy]:
    """Return the ranks whose busy and idle time is known; all ranks, if fewer than half are.

    Ranks are counted, because a broken clock makes a share of the time absurd. A rank without
    device work does not count beside others that have some.
    """
    working = [study for study in studies if study.devices]
    known = [
        study
        for study in working
        if study.idle.total_ns is not None and all(d.busy_ns is not None for d in study.devices)
    ]
    return known if known and len(known) * 2 >= len(working) else working or list(studies)


def left_out(studies: Sequence[TraceStudy], kept: Sequence[TraceStudy]) -> tuple[Check, ...]:
    """Return a check for each reason why ranks are not added up."""
    reasons: dict[str, list[str]] = {}
    for study in studies:
        if not any(study is other for other in kept):
            reasons.setdefault(_reason(study), []).append(study.label)
    return tuple(
        Check(
            id="left-out",
            severity="warning",
            claim=f"{rank_label_list(labels)} left out: {reason}",
            count=len(labels),
        )
        for reason, labels in reasons.items()
    )


def _reason(study: TraceStudy) -> str:
    if study.devices:
        why = next((d.trust.why for d in study.devices if d.trust.why), study.idle.trust.why)
        return f"busy and idle time cannot be told: {why}"
    is_cut = any(check.id == "truncated" for check in study.validation)
    return "the file is cut short before any device work" if is_cut else "no device work recorded"


def combined_trust(parts: Sequence[tuple[str, Trust, int]], ranks: int) -> Trust:
    """Return the trust in a sum, from the label, the trust and the size of each part. Doubts about
    some parts are named; they are doubts about the sum if they concern half of it. `ranks` is how
    many ranks there are in all."""
    doubted = [part for part in parts if part[1].confidence != "good"]
    if not doubted:
        return Trust()
    groups: dict[Hashable, list[tuple[str, Trust, int]]] = {}
    for part in doubted:  # the same codes with other figures are the same doubt
        groups.setdefault(part[1].codes or part[1].why, []).append(part)
    doubts = []
    for group in groups.values():
        labels = [label for label, _, _ in group]
        who = "all" if len(labels) == ranks > 1 else rank_label_list(labels)
        has_other_figures = len({trust.why for _, trust, _ in group}) > 1
        figures = f" (figures of {labels[0]})" if has_other_figures else ""
        doubts.append(f"{who}{figures}: {group[0][1].why}")
    if len(doubts) > MAX_DOUBTS:
        doubts[MAX_DOUBTS:] = [f"{len(doubts) - MAX_DOUBTS} more"]
    total = sum(ns for _, _, ns in parts)
    is_grave = sum(ns for _, _, ns in doubted) >= MIN_SHARE_IN_DOUBT * total
    all_unreliable = all(trust.confidence == "unreliable" for _, trust, _ in parts)
    worst: Confidence = "unreliable" if all_unreliable else "doubtful"
    return Trust(
        confidence=worst if is_grave else "good",
        why="; ".join(doubts),
        codes=tuple(dict.fromkeys(code for _, trust, _ in doubted for code in trust.codes)),
    )


def doubtful_sections(
    affects: Sequence[str],
    about: Sequence[TraceStudy],
    studies: Sequence[TraceStudy],
    kept: Sequence[TraceStudy],
) -> tuple[str, ...]:
    """Return the sections that a check about some ranks makes doubtful in the sum. A section of one
    rank is doubtful if the check is about that rank; the others, if it is about half of them."""
    ids = {id(study) for study in about}
    idle = [study.idle.total_ns or 0 for study in kept]
    their_idle_ns = sum(ns for study, ns in zip(kept, idle, strict=True) if id(study) in ids)
    much_idle_time = their_idle_ns >= MIN_SHARE_IN_DOUBT * sum(idle) and any(
        id(s) in ids for s in kept
    )
    many_ranks = len(ids) >= MIN_SHARE_IN_DOUBT * len(studies)
    is_doubtful = dict.fromkeys(OF_ONE_RANK, id(kept[0]) in ids)
    is_doubtful |= dict.fromkeys(OF_IDLE_TIME, much_idle_time)
    return tuple(section for section in affects if is_doubtful.get(section, many_ranks))

"""Several ranks' studies added up to one: rows by name, idle time by cause."""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

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
    Window,
)
from ridgeline.records.trust import Check, Confidence, Trust
from ridgeline.trace.validation import trust_in
from ridgeline.trace.verdict import verdict
from ridgeline.units import rank_label_list

Row = TypeVar("Row", bound=Struct)
MOST_GAPS = 1000
Key = tuple[str, str, str, tuple[str, ...]]
"""What makes two findings the same: id, severity, claim, sections."""


def merged(
    studies: Sequence[TraceStudy], across: Ranks, limit: int, job: Sequence[Check] = ()
) -> TraceStudy:
    """One study over all of them; what cannot be added up is of the first, and says so.

    `job`: what speaks against their being ranks of one job.
    """
    stay = kept(studies)
    first = stay[0]
    kernels = _shared(_kernels(s.kernels for s in studies), "total_ns")
    categories = _shared(_categories(s.categories for s in studies), "device_ns")
    ops = _shared(_ops(s.ops for s in studies), "device_self_ns", "host_self_ns")
    shapes = _shared(_ops(s.shapes for s in studies), "device_self_ns", "host_self_ns")
    modules = _modules(s.modules for s in studies)
    few = len(stay) < len(studies)
    found = msgspec.structs.replace(
        first,
        files=tuple(f for s in studies for f in s.files),
        events=sum(s.events for s in studies),
        label=f"{len(stay)} of {len(studies)} ranks" if few else f"{len(studies)} ranks",
        window=_longest(stay),
        validation=(*job, *left_out(studies, stay), *_checks(studies, stay)),
        devices=tuple(d for s in stay for d in s.devices),
        idle=_idle(stay),
        launch=msgspec.structs.replace(first.launch, of=first.label),
        critical_path=msgspec.structs.replace(first.critical_path, of=first.label),
        regions=_regions(s.regions for s in studies),
        overlap=_overlap(stay),
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
    said = verdict(
        found.devices, found.idle, found.categories, found.ops, found.validation, found.window,
        kernels=found.kernels, backend=found.backend,
    )  # fmt: skip
    return msgspec.structs.replace(
        found,
        verdict=f"{said}; {across.late}" if across.late else said,
        trust=trust_in("idle" if found.devices else "ops", found.validation),
    )


def _longest(studies: Sequence[TraceStudy]) -> Window:
    return max((s.window for s in studies), key=lambda window: window.ns)


def _checks(studies: Sequence[TraceStudy], stay: Sequence[TraceStudy]) -> tuple[Check, ...]:
    """Each finding with the rank it is of; the same sentence of several once."""
    by_claim: dict[Key, list[TraceStudy]] = {}
    checks: dict[Key, Check] = {}
    for one in studies:
        for check in one.validation:
            key = (check.id, check.severity, check.claim, check.affects)
            by_claim.setdefault(key, []).append(one)
            checks[key] = check
    order = ("error", "warning", "note")
    found = []
    for claim, check in sorted(checks.items(), key=lambda item: order.index(item[1].severity)):
        whose = by_claim[claim]
        who = "all" if len(whose) == len(studies) else rank_label_list([one.label for one in whose])
        told = f"{who}: {check.claim}"
        same = [one for other in checks if other[0] == claim[0] for one in by_claim[other]]
        affects = touched(check.affects, same, studies, stay)
        found.append(msgspec.structs.replace(check, claim=told, affects=affects))
    return tuple(found)


def _group(rows: Iterable[Iterable[Row]], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    groups: dict[Hashable, list[Row]] = {}
    for many in rows:
        for row in many:
            groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _kernels(rows: Iterable[Iterable[KernelRow]]) -> list[KernelRow]:
    found = []
    for group in _group(rows, lambda row: row.name):
        count = sum(row.count for row in group)
        total = sum(row.total_ns for row in group)
        found.append(
            msgspec.structs.replace(
                group[0], count=count, total_ns=total, mean_ns=total / max(count, 1),
                least_ns=min(row.least_ns for row in group),
                most_ns=max(row.most_ns for row in group),
            )
        )  # fmt: skip
    return found


def _categories(rows: Iterable[Iterable[CategoryRow]]) -> list[CategoryRow]:
    return [_summed(g, "device_ns", "count") for g in _group(rows, lambda row: row.category)]


def _ops(rows: Iterable[Iterable[OpRow]]) -> list[OpRow]:
    columns = ("count", "host_ns", "host_self_ns", "device_ns", "device_self_ns")
    return [_summed(g, *columns) for g in _group(rows, lambda row: (row.name, row.shape))]


def _modules(rows: Iterable[Iterable[ModuleRow]]) -> tuple[ModuleRow, ...]:
    columns = ("count", "host_ns", "device_ns", "device_self_ns")
    found = [_summed(g, *columns) for g in _group(rows, lambda row: row.path)]
    total = sum(row.device_self_ns for row in found) or 1
    return tuple(msgspec.structs.replace(row, share=row.device_ns / total) for row in found)


def _regions(rows: Iterable[Iterable[Region]]) -> tuple[Region, ...]:
    columns = ("count", "host_ns", "device_ns", "operations")
    found = [_summed(g, *columns) for g in _group(rows, lambda row: (row.kind, row.name))]
    return tuple(sorted(found, key=lambda row: -max(row.device_ns, row.host_ns)))


def _phases(rows: Sequence[tuple[Phase, ...]]) -> tuple[Phase, ...]:
    found = [_summed(g, "host_ns", "device_ns") for g in _group(rows, lambda row: row.phase)]
    return _shared(found, "host_ns", ordered=False)


def _summed(group: list[Row], *columns: str) -> Row:
    sums = {column: sum(getattr(row, column) for row in group) for column in columns}
    return msgspec.structs.replace(group[0], **sums)


def _shared(rows: list[Row], *columns: str, ordered: bool = True) -> tuple[Row, ...]:
    """With shares of the first column (of the second where the first is all zero)."""
    column = next((c for c in columns if sum(getattr(r, c) for r in rows)), columns[0])
    total = sum(getattr(row, column) for row in rows) or 1
    found = [msgspec.structs.replace(row, share=getattr(row, column) / total) for row in rows]
    return tuple(sorted(found, key=lambda row: -getattr(row, column)) if ordered else found)


def _idle(studies: Sequence[TraceStudy]) -> Idle:
    """Idle time of all; unreliable where one of those to be added up is."""
    parts = [one.idle for one in studies]
    if any(part.total_ns is None for part in parts):
        bad = [(one.label, one.idle.trust, 1) for one in studies if one.idle.total_ns is None]
        return Idle(trust=trust_of(bad, len(studies)))
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
            held = buckets.get(bound, (0, 0))
            buckets[bound] = (held[0] + count, held[1] + ns)
    return Idle(
        total_ns=total,
        causes=tuple(sorted(causes, key=lambda cause: -cause.ns)),
        top=tuple(sorted((g for p in parts for g in p.top), key=lambda g: -g.dur_ns)[:MOST_GAPS]),
        gaps=sum(part.gaps for part in parts),
        histogram=tuple((bound, *buckets[bound]) for bound in sorted(buckets)),
        trust=trust_of(
            [(one.label, one.idle.trust, one.idle.total_ns or 0) for one in studies], len(studies)
        ),
    )


def _places(group: list[IdleCause]) -> tuple[Place, ...]:
    found = []
    for same in _group((row.places for row in group), lambda p: (p.file, p.line, p.function)):
        found.append(msgspec.structs.replace(same[0], ns=sum(place.ns for place in same)))
    return tuple(sorted(found, key=lambda place: -place.ns)[:5])


def _overlap(studies: Sequence[TraceStudy]) -> Overlap:
    columns = ("both_ns", "host_ns", "device_ns", "neither_ns")
    parts = [(one.label, one.overlap.trust, one.window.ns) for one in studies]
    trust = trust_of(parts, len(studies))
    summed = _summed([one.overlap for one in studies], *columns)
    return msgspec.structs.replace(summed, trust=trust)


MOST_DOUBTFUL = 0.5
"""Share of the idle time from which doubts of some ranks are doubts of the whole."""

OF_ONE = ("launch", "critical path", "roofline")
"""Sections that are of one rank."""
OF_IDLE = ("idle", "idle causes", "overlap")
"""Sections that add up the ranks that stay."""


def kept(studies: Sequence[TraceStudy]) -> list[TraceStudy]:
    """Those that tell their device's busy and idle time; all, where fewer than half do.

    By number: a broken clock makes the time itself absurd, so a share of it would tell nothing.
    Those without device work have no say, beside others that have some.
    """
    working = [one for one in studies if one.devices]
    good = [one for one in working if _tells(one)]
    return good if good and len(good) * 2 >= len(working) else working or list(studies)


def left_out(studies: Sequence[TraceStudy], stay: Sequence[TraceStudy]) -> tuple[Check, ...]:
    """A sentence for each that is not added up."""
    reasons: dict[str, list[str]] = {}
    for one in studies:
        if not any(one is other for other in stay):
            reasons.setdefault(_reason(one), []).append(one.label)
    return tuple(
        Check(
            id="left-out",
            severity="warning",
            claim=f"{rank_label_list(labels)} left out: {reason}",
            count=len(labels),
        )
        for reason, labels in reasons.items()
    )


def trust_of(parts: Sequence[tuple[str, Trust, int]], of: int) -> Trust:
    """Of a sum, from each part's label, trust and size: doubts of some are named, and are doubts
    of the sum where they concern half of it. `of`: how many there are in all."""
    doubted = [(label, trust, ns) for label, trust, ns in parts if trust.confidence != "good"]
    if not doubted:
        return Trust()
    groups: dict[Hashable, list[tuple[str, Trust, int]]] = {}
    for part in doubted:  # the same words with other figures are the same doubt
        groups.setdefault(re.sub(r"\d[\d,.]*", "#", part[1].why), []).append(part)
    said = []
    for group in groups.values():
        labels, whys = [label for label, _, _ in group], {trust.why for _, trust, _ in group}
        who = "all" if len(labels) == of > 1 else rank_label_list(labels)
        figures = f" (figures of {labels[0]})" if len(whys) > 1 else ""
        said.append(f"{who}{figures}: {group[0][1].why}")
    total = sum(ns for _, _, ns in parts)
    grave = sum(ns for _, _, ns in doubted) >= MOST_DOUBTFUL * total
    worst: Confidence = "unreliable" if _all_unreliable(parts) else "doubtful"
    return Trust(confidence=worst if grave else "good", why=_sentences(said))


def touched(
    affects: Sequence[str],
    whose: Sequence[TraceStudy],
    studies: Sequence[TraceStudy],
    stay: Sequence[TraceStudy],
) -> tuple[str, ...]:
    """The sections of the sum that a finding of some ranks makes doubtful: those of the one rank
    that stands for all if it is of that rank, the others if it concerns half of them."""
    ids = {id(one) for one in whose}
    idle = [one.idle.total_ns or 0 for one in stay]
    theirs = sum(ns for one, ns in zip(stay, idle, strict=True) if id(one) in ids)
    much = theirs >= MOST_DOUBTFUL * sum(idle) and any(id(one) in ids for one in stay)
    many = len(ids) >= MOST_DOUBTFUL * len(studies)
    first = id(stay[0]) in ids
    grave = dict.fromkeys(OF_ONE, first) | dict.fromkeys(OF_IDLE, much)
    return tuple(section for section in affects if grave.get(section, many))


def _sentences(said: Sequence[str]) -> str:
    return "; ".join(said) if len(said) < 4 else "; ".join([*said[:3], f"{len(said) - 3} more"])


def _all_unreliable(parts: Sequence[tuple[str, Trust, int]]) -> bool:
    return all(trust.confidence == "unreliable" for _, trust, _ in parts)


def _tells(one: TraceStudy) -> bool:
    return one.idle.total_ns is not None and all(d.busy_ns is not None for d in one.devices)


def _reason(one: TraceStudy) -> str:
    if one.devices:
        why = next((d.trust.why for d in one.devices if d.trust.why), one.idle.trust.why)
        return f"busy and idle time cannot be told: {why}"
    cut = any(check.id == "truncated" for check in one.validation)
    return "the file is cut short before any device work" if cut else "no device work recorded"

"""Which ranks' figures can be added up, and how far the sum can be believed.

One bad file of eight must not cost the other seven their figures: it is left out and named.
"""

import re
from collections.abc import Hashable, Sequence

from ridgeline.records.trace import TraceStudy
from ridgeline.records.trust import Check, Confidence, Trust
from ridgeline.units import rank_label_list

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

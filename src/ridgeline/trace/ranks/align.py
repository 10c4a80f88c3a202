"""One clock for all ranks: a collective ends on all of them at nearly the same time.

Wall clocks of machines differ by milliseconds, those of containers by hours. Measured on eight
V100s of one job: ends of one collective lie within 5 µs, starts within 7,600 µs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trust import Trust
from ridgeline.trace.ranks.collectives import FAMILIES, Collectives
from ridgeline.trace.ranks.matching import Matching, Table
from ridgeline.trace.ranks.wording import joined, labels_named

GOOD_NS = 50_000
"""Median residual up to which alignment is as good as the kernels' own times."""
WORST_NS = 1_000_000
"""Beyond it no waiting time is worth telling."""

# a broadcast's root is done when its data are sent, which may be before they have come
_ENDS_TOGETHER = tuple(
    FAMILIES.index(name)
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
)


@dataclass(frozen=True, slots=True)
class Alignment:
    offset_ns: tuple[int, ...]
    """Added to a rank's times, it gives those of the first rank of its component."""
    component: tuple[int, ...]
    """Ranks that collectives join, directly or through others, have the same; -1: with nobody."""
    residual_ns: int
    """Median distance of a matched end from the aligned one, on the worst rank."""
    trust: Trust

    @property
    def aligned(self) -> tuple[bool, ...]:
        return tuple(part >= 0 for part in self.component)

    @property
    def usable(self) -> bool:
        return self.trust.confidence != "unreliable"


def align(ranks: Sequence[Collectives], matching: Matching, labels: Sequence[str]) -> Alignment:
    """Each rank against one already aligned, the one it shares most collectives with; groups that
    nothing joins each among themselves."""
    offset, component = [0] * len(ranks), [-1] * len(ranks)
    residual = 0
    strict = matching.table[ends_together(ranks, matching.table)]
    shown = (matching.table >= 0).astype(np.int64)
    partners = shown.T @ shown
    np.fill_diagonal(partners, 0)
    for first in range(len(ranks)):
        if component[first] >= 0 or not partners[first].any():
            continue
        component[first] = max(component) + 1
        for table in (strict, matching.table):
            residual = max(residual, _spread_over(ranks, table, offset, component))
    trust = _trust(ranks, matching, component, residual, labels)
    return Alignment(tuple(offset), tuple(component), residual, trust)


def _spread_over(
    ranks: Sequence[Collectives], table: Table, offset: list[int], component: list[int]
) -> int:
    """Aligns all that the table joins to what is aligned already; the largest residual."""
    present = (table >= 0).astype(np.int64)
    shared = present.T @ present
    residual = 0
    while (pair := _closest(shared, [part >= 0 for part in component])) is not None:
        a, b = pair
        both = (table[:, a] >= 0) & (table[:, b] >= 0)
        ends = [ranks[r].end[table[both, r]] for r in (a, b)]
        apart, spread = _median(ends[0] - ends[1])
        offset[b], component[b] = offset[a] + apart, component[a]
        residual = max(residual, spread)
    return residual


def _closest(shared: NDArray[np.int64], done: Sequence[bool]) -> tuple[int, int] | None:
    """The aligned and the unaligned rank that share most; the first of equals."""
    known = np.array(done)
    counts = np.where(known[:, None] & ~known[None, :], shared, 0)
    if not counts.any():
        return None
    a, b = np.unravel_index(int(counts.argmax()), counts.shape)
    return int(a), int(b)


def ends_together(ranks: Sequence[Collectives], table: Table) -> NDArray[np.bool_]:
    """Which matched collectives no rank can leave before all have come."""
    family = np.zeros(len(table), np.int64)
    for r, one in enumerate(ranks):
        here = table[:, r] >= 0
        family[here] = np.maximum(family[here], one.family[table[here, r]])
    return np.isin(family, _ENDS_TOGETHER)


def _median(differences: NDArray[np.int64]) -> tuple[int, int]:
    """The median and the median distance from it; floats only for the small remainders."""
    base = differences[0]
    near = differences - base
    middle = round(float(np.median(near)))
    return int(base) + middle, round(float(np.median(np.abs(near - middle))))


def _trust(
    ranks: Sequence[Collectives],
    matching: Matching,
    component: Sequence[int],
    residual: int,
    labels: Sequence[str],
) -> Trust:
    near = f"ends of a collective differ by {residual / 1e3:.0f} µs after alignment"
    if any(one.source == "calls" for one in ranks):
        why = "the traces show when collectives were asked for, not when they ran"
        return Trust(confidence="unreliable", why=why)
    parts = [
        [labels[r] for r, part in enumerate(component) if part == which]
        for which in range(max(component, default=-1) + 1)
    ]
    if not parts:
        return Trust(confidence="unreliable", why="the traces share no collective")
    if residual > WORST_NS:
        return Trust(confidence="unreliable", why=f"{near}: they may not be the same ones")
    doubts = []
    alone = [labels[r] for r, part in enumerate(component) if part < 0]
    if alone:
        verb = "shares" if len(alone) == 1 else "share"
        doubts.append(f"{labels_named(alone)} {verb} no collective with the others")
    if len(parts) > 1:
        who = joined([labels_named(part) for part in parts])
        doubts.append(f"no collective joins {who}: their clocks are not comparable")
    if matching.uneven:
        doubts.append(matching.uneven)
    if residual > GOOD_NS:
        doubts.append(near)
    if len(matching) < 3:
        doubts.append(f"aligned by {len(matching)} collective{'s' * (len(matching) != 1)} only")
    return Trust(confidence="doubtful", why="; ".join(doubts)) if doubts else Trust()

"""The time in each collective, split into waiting (until the last rank came) and transfer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.facts import Trust
from ridgeline.records.trace import CollectiveRow
from ridgeline.trace.ranks.collectives import FAMILIES, Collectives, Matching, Table
from ridgeline.units import rank_label_list, word_list

MAX_GOOD_RESIDUAL_NS = 50_000
"""The largest median residual at which the alignment is as good as the times of the kernels."""
MAX_RESIDUAL_NS = 1_000_000
"""Above this median residual, waiting times mean nothing."""

# a broadcast's root is done when its data are sent, which may be before they have come
_ENDS_TOGETHER = tuple(
    FAMILIES.index(name)
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
)


@dataclass(frozen=True, slots=True)
class Alignment:
    offset_ns: tuple[int, ...]
    """Added to the times of a rank, the offset gives times on the clock of the first rank of its
    component."""
    component: tuple[int, ...]
    """The same number for ranks that collectives join, directly or through other ranks; -1 for a
    rank that shares none."""
    residual_ns: int
    """The median difference of the matched ends after alignment, on the worst rank."""
    trust: Trust

    @property
    def aligned(self) -> tuple[bool, ...]:
        return tuple(part >= 0 for part in self.component)

    @property
    def usable(self) -> bool:
        return self.trust.confidence != "unreliable"


ABSENT = np.iinfo(np.int64).min
"""The start time of a rank that takes no part in a collective."""
_NEVER = np.iinfo(np.int64).max
_MAX_GROUP_CHARACTERS = 60
"""The name of a process group is cut to this length."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The waiting in each matched collective (row) of each rank (column), on the aligned clock."""

    table: Table
    """The row in each rank's Collectives; -1 where the rank takes no part."""
    start: Table
    wait: Table
    transfer: Table
    last: NDArray[np.int64]
    """When the last rank came."""
    late: NDArray[np.int64]
    """The index of the rank that came last."""
    skew: NDArray[np.int64]
    wire: NDArray[np.int64]
    """The duration on the last rank. It waits for no other rank, and the error of the alignment
    cancels out."""
    early_ends: int
    """The number of collectives that ended on some rank before the last rank came. There, the
    alignment or the matching is wrong."""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def caused(self) -> NDArray[np.int64]:
        """The sum of all ranks' waiting in each collective."""
        total: NDArray[np.int64] = self.wait.sum(axis=1)
        return total


def waits(
    ranks: Sequence[Collectives],
    table: Table,
    alignment: Alignment,
    inside: Sequence[NDArray[np.bool_]],
) -> Waits:
    """Split the collectives that begin inside the window on every rank that shows them."""
    table = _chosen(table, alignment, inside)
    takes_part = table >= 0
    start, end = np.full(table.shape, ABSENT), np.full(table.shape, _NEVER)
    for r, rank in enumerate(ranks):
        rows = takes_part[:, r]
        start[rows, r] = rank.start[table[rows, r]] + alignment.offset_ns[r]
        end[rows, r] = rank.end[table[rows, r]] + alignment.offset_ns[r]
    duration = np.where(takes_part, end - np.where(takes_part, start, end), 0)
    last = start.max(axis=1, initial=ABSENT)
    late = start.argmax(axis=1) if len(table) else np.empty(0, np.int64)
    wait = np.where(
        takes_part, np.clip(last[:, None] - np.where(takes_part, start, 0), 0, duration), 0
    )
    first = np.where(takes_part, start, _NEVER).min(axis=1, initial=_NEVER)
    slack = max(alignment.residual_ns * 3, 5_000)
    early = ends_together(ranks, table) & (end.min(axis=1, initial=_NEVER) < last - slack)
    return Waits(
        table=table,
        start=start,
        wait=wait,
        transfer=duration - wait,
        last=last,
        late=late.astype(np.int64),
        skew=last - first,
        wire=duration[np.arange(len(table)), late],
        early_ends=int(early.sum()),
    )


def _chosen(table: Table, alignment: Alignment, inside: Sequence[NDArray[np.bool_]]) -> Table:
    """Return the collectives of at least two aligned ranks that lie inside the window on all of
    them."""
    table = np.where(np.array(alignment.aligned)[None, :], table, np.int64(-1))
    is_chosen: NDArray[np.bool_] = (table >= 0).sum(axis=1) >= 2
    for r, within in enumerate(inside):
        takes_part = table[:, r] >= 0
        is_chosen[takes_part] &= within[table[takes_part, r]]
    return table[is_chosen]


def bus_factor(family: str, size: int) -> float | None:
    """Return the factor from the algorithm's bytes to those on the busiest link, as nccl-tests
    define it; None where it is not defined."""
    if size < 1:
        return None
    if family == "all_reduce":
        return 2 * (size - 1) / size
    if family in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (size - 1) / size
    return 1.0 if family in ("broadcast", "reduce") else None


def collective_rows(
    ranks: Sequence[Collectives], split: Waits, numbers: Sequence[int], min_skew_ns: int
) -> tuple[CollectiveRow, ...]:
    """Return one row for each kind of collective, group and size, those with most waiting first."""
    if not len(split):
        return ()
    attributes = np.full((len(split), 3), -1, np.int64)  # family, bytes, size of the group
    groups = np.full(len(split), "", object)
    for r, rank in enumerate(ranks):
        shown = np.flatnonzero(split.table[:, r] >= 0)
        rows_shown = split.table[shown, r]
        columns = np.column_stack(
            (rank.family[rows_shown], rank.bytes[rows_shown], rank.size[rows_shown])
        )
        attributes[shown] = np.maximum(attributes[shown], columns)
        groups[shown] = np.array(rank.groups, object)[rank.group[rows_shown]]
    names, group = np.unique(groups.astype(str), return_inverse=True)
    keys = np.column_stack((attributes, group))
    distinct, line = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(line.reshape(-1), kind="stable")
    cuts = np.searchsorted(line.reshape(-1)[order], np.arange(1, len(distinct)))
    rows = [
        _row(split, at, key, str(names[key[3]]), numbers, min_skew_ns)
        for at, key in zip(np.split(order, cuts), distinct, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.wait_ns, -row.wire_ns * row.count, row.name)))


def _row(
    split: Waits,
    members: NDArray[np.int64],
    key: NDArray[np.int64],
    group: str,
    numbers: Sequence[int],
    min_skew_ns: int,
) -> CollectiveRow:
    family, size_bytes = FAMILIES[int(key[0])], int(key[1])
    wire = round(float(np.median(split.wire[members])))
    rate = size_bytes / (wire / 1e9) if size_bytes > 0 and wire > 0 else None
    factor = bus_factor(family, int(key[2]))
    caused = np.bincount(
        split.late[members],
        np.where(split.skew[members] >= min_skew_ns, split.caused[members], 0),
        len(numbers),
    )
    return CollectiveRow(
        name=family or "collective",
        group="" if group.startswith("#") else group[:_MAX_GROUP_CHARACTERS],
        count=len(members),
        bytes=size_bytes if size_bytes >= 0 else None,
        wire_ns=wire,
        wait_ns=int(split.wait[members].sum()),
        skew_ns=int(split.skew[members].max()),
        algorithm_bytes_s=rate,
        bus_bytes_s=rate * factor if rate is not None and factor else None,
        late_rank=numbers[int(caused.argmax())] if caused.any() else None,
    )


def align(ranks: Sequence[Collectives], matching: Matching, labels: Sequence[str]) -> Alignment:
    """Align each rank with the aligned rank with which it shares most collectives. Ranks that no
    collective joins with the others form a component of their own."""
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
    """Align all ranks that the table joins to an aligned rank; return the largest residual."""
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
    """Return the aligned and the unaligned rank that share most collectives; the first such pair if
    there are several, None if there is none."""
    known = np.array(done)
    counts = np.where(known[:, None] & ~known[None, :], shared, 0)
    if not counts.any():
        return None
    a, b = np.unravel_index(int(counts.argmax()), counts.shape)
    return int(a), int(b)


def ends_together(ranks: Sequence[Collectives], table: Table) -> NDArray[np.bool_]:
    """Return which collectives no rank can leave before all ranks have come."""
    family = np.zeros(len(table), np.int64)
    for r, rank in enumerate(ranks):
        shown = table[:, r] >= 0
        family[shown] = np.maximum(family[shown], rank.family[table[shown, r]])
    return np.isin(family, _ENDS_TOGETHER)


def _median(differences: NDArray[np.int64]) -> tuple[int, int]:
    """Return the median and the median distance from it; floats are used for small remainders
    only."""
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
    if any(rank.source == "calls" for rank in ranks):
        why = "the traces show when collectives were asked for, not when they ran"
        return Trust(confidence="unreliable", why=why)
    parts = [
        [labels[r] for r, part in enumerate(component) if part == which]
        for which in range(max(component, default=-1) + 1)
    ]
    if not parts:
        return Trust(confidence="unreliable", why="the traces share no collective")
    if residual > MAX_RESIDUAL_NS:
        return Trust(confidence="unreliable", why=f"{near}: they may not be the same ones")
    doubts = []
    alone = [labels[r] for r, part in enumerate(component) if part < 0]
    if alone:
        verb = "shares" if len(alone) == 1 else "share"
        doubts.append(f"{rank_label_list(alone)} {verb} no collective with the others")
    if len(parts) > 1:
        who = word_list([rank_label_list(part) for part in parts])
        doubts.append(f"no collective joins {who}: their clocks are not comparable")
    if matching.uneven:
        doubts.append(matching.uneven)
    if residual > MAX_GOOD_RESIDUAL_NS:
        doubts.append(near)
    if len(matching) < 3:
        doubts.append(f"aligned by {len(matching)} collective{'s' * (len(matching) != 1)} only")
    return Trust(confidence="doubtful", why="; ".join(doubts)) if doubts else Trust()

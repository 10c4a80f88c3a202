"""The time in each collective, split: until the last rank came is waiting, the rest is transfer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace_ranks import CollectiveRow
from ridgeline.trace.ranks.align import Alignment, ends_together
from ridgeline.trace.ranks.collectives import FAMILIES, Collectives
from ridgeline.trace.ranks.matching import Table

ABSENT = np.iinfo(np.int64).min
"""The start of a rank that takes no part."""
_NEVER = np.iinfo(np.int64).max
_LONGEST = 60
"""Characters of a group's name and members that are told."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Row i is one matched collective, column r a rank; times on the aligned clock."""

    table: Table
    """Places in each rank's Collectives; -1: takes no part."""
    start: Table
    wait: Table
    transfer: Table
    last: NDArray[np.int64]
    """When the last rank came."""
    late: NDArray[np.int64]
    """That rank, by its place in the list."""
    skew: NDArray[np.int64]
    wire: NDArray[np.int64]
    """What it took the last rank: nobody to wait for, and free of the alignment's error."""
    early_ends: int
    """Collectives that ended on some rank before the last had come: alignment or match is wrong."""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def caused(self) -> NDArray[np.int64]:
        """What all ranks waited in each collective."""
        total: NDArray[np.int64] = self.wait.sum(axis=1)
        return total


def waits(
    ranks: Sequence[Collectives],
    table: Table,
    alignment: Alignment,
    inside: Sequence[NDArray[np.bool_]],
) -> Waits:
    """Of the collectives that begin inside the window on every rank that shows them."""
    table = _chosen(table, alignment, inside)
    here = table >= 0
    start, end = np.full(table.shape, ABSENT), np.full(table.shape, _NEVER)
    for r, one in enumerate(ranks):
        rows = here[:, r]
        start[rows, r] = one.start[table[rows, r]] + alignment.offset_ns[r]
        end[rows, r] = one.end[table[rows, r]] + alignment.offset_ns[r]
    duration = np.where(here, end - np.where(here, start, end), 0)
    last = start.max(axis=1, initial=ABSENT)
    late = start.argmax(axis=1) if len(table) else np.empty(0, np.int64)
    wait = np.where(here, np.clip(last[:, None] - np.where(here, start, 0), 0, duration), 0)
    first = np.where(here, start, _NEVER).min(axis=1, initial=_NEVER)
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
    """Two aligned ranks at least, and inside the window on all."""
    table = np.where(np.array(alignment.aligned)[None, :], table, np.int64(-1))
    kept: NDArray[np.bool_] = (table >= 0).sum(axis=1) >= 2
    for r, within in enumerate(inside):
        here = table[:, r] >= 0
        kept[here] &= within[table[here, r]]
    return table[kept]


def bus_factor(family: str, size: int) -> float | None:
    """What the busiest link carries of the algorithm's bytes, as NCCL's own tests count it."""
    if size < 1:
        return None
    if family == "all_reduce":
        return 2 * (size - 1) / size
    if family in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (size - 1) / size
    return 1.0 if family in ("broadcast", "reduce") else None


def collective_rows(
    ranks: Sequence[Collectives], found: Waits, numbers: Sequence[int], least_ns: int
) -> tuple[CollectiveRow, ...]:
    """One row for each collective, group and size; the most waited for first."""
    if not len(found):
        return ()
    told = np.full((len(found), 3), -1, np.int64)  # family, bytes, size of the group
    groups = np.full(len(found), "", object)
    for r, one in enumerate(ranks):
        here = np.flatnonzero(found.table[:, r] >= 0)
        place = found.table[here, r]
        columns = np.column_stack((one.family[place], one.bytes[place], one.size[place]))
        told[here] = np.maximum(told[here], columns)
        groups[here] = np.array(one.groups, object)[one.group[place]]
    names, group = np.unique(groups.astype(str), return_inverse=True)
    keys = np.column_stack((told, group))
    distinct, line = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(line.reshape(-1), kind="stable")
    cuts = np.searchsorted(line.reshape(-1)[order], np.arange(1, len(distinct)))
    rows = [
        _row(found, at, key, str(names[key[3]]), numbers, least_ns)
        for at, key in zip(np.split(order, cuts), distinct, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.wait_ns, -row.wire_ns * row.count, row.name)))


def _row(
    found: Waits,
    at: NDArray[np.int64],
    key: NDArray[np.int64],
    group: str,
    numbers: Sequence[int],
    least_ns: int,
) -> CollectiveRow:
    family, size_bytes = FAMILIES[int(key[0])], int(key[1])
    wire = round(float(np.median(found.wire[at])))
    rate = size_bytes / (wire / 1e9) if size_bytes > 0 and wire > 0 else None
    factor = bus_factor(family, int(key[2]))
    caused = np.bincount(
        found.late[at], np.where(found.skew[at] >= least_ns, found.caused[at], 0), len(numbers)
    )
    return CollectiveRow(
        name=family or "collective",
        group="" if group.startswith("#") else group[:_LONGEST],
        count=len(at),
        bytes=size_bytes if size_bytes >= 0 else None,
        wire_ns=wire,
        wait_ns=int(found.wait[at].sum()),
        skew_ns=int(found.skew[at].max()),
        algorithm_bytes_s=rate,
        bus_bytes_s=rate * factor if rate is not None and factor else None,
        late_rank=numbers[int(caused.argmax())] if caused.any() else None,
    )

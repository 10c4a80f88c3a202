"""Which collective of one rank is which of another: by the group's own count where the trace has
it, else by order within the group. Knows no clock but each rank's own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.ranks.collectives import Collectives
from ridgeline.trace.ranks.membership import Job, Membership, membership

Table = NDArray[np.int64]

MOST_IN_ONE_COUNT = 64
"""Kernels that share one sequence number (a coalesced call); with more it is no sequence number."""
_NEAR = 8
"""Shifts tried around "begins together" and "ends together", for traces cut at either end."""
_TELLING_NS = 50_000
"""A spread up to this needs no other shift: collectives end within microseconds of each other,
steps of the same program differ by more."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Row i is one collective, column r a rank: the place in that rank's Collectives, or -1."""

    table: Table
    """Those that two ranks show at least: enough to compare clocks."""
    whole: NDArray[np.bool_]
    """Which of them every member of the group shows: only then the last to come is known."""
    matched: int
    """Collectives that all members show whose trace is given."""
    unmatched: int
    """Those that some member does not show though its trace is given, or one rank alone."""
    lacks: tuple[int, ...]
    """How many of the others' collectives each rank does not show."""
    members: Membership
    uneven: str = ""
    """Where the ranks show very different numbers of collectives."""

    def __len__(self) -> int:
        return len(self.table)


def match(ranks: Sequence[Collectives], job: Job) -> Matching:
    groups = {name: code for code, name in enumerate({g: 0 for one in ranks for g in one.groups})}
    members = membership(ranks, groups, job)
    numbered = _numbered(ranks, groups)
    kept = [np.flatnonzero(number >= 0) for _, number in numbered]
    place = np.concatenate(kept)
    owner = np.repeat(np.arange(len(ranks)), [len(rows) for rows in kept])
    group, number = (
        np.concatenate([columns[i][rows] for columns, rows in zip(numbered, kept, strict=True)])
        for i in (0, 1)
    )
    # one column of keys: sorting pairs takes ten times as long
    numbers, dense = np.unique(number, return_inverse=True)
    distinct, line = np.unique(group * (len(numbers) + 1) + dense, return_inverse=True)
    table = np.full((len(distinct), len(ranks)), -1, np.int64)
    table[line, owner] = place
    _part_strangers(table, ranks)
    group_of = distinct // (len(numbers) + 1)
    shown = table >= 0
    count = shown.sum(axis=1)
    absent = members.here[group_of] & ~shown
    complete = (count >= 2) & ~absent.any(axis=1)
    shared = count >= 2
    return Matching(
        table=table[shared],
        whole=(complete & (count >= members.size[group_of]))[shared],
        matched=int(complete.sum()),
        unmatched=len(table) - int(complete.sum()),
        lacks=tuple(absent.sum(axis=0).tolist()),
        members=members,
        uneven=_uneven(ranks),
    )


def _part_strangers(table: Table, ranks: Sequence[Collectives]) -> None:
    """Takes out whoever runs another collective than the first rank of the line."""
    families = np.zeros(table.shape, np.int64)
    for r, one in enumerate(ranks):
        here = table[:, r] >= 0
        families[here, r] = one.family[table[here, r]]
    first = np.argmax(table >= 0, axis=1) if table.size else np.empty(0, np.int64)
    expected = families[np.arange(len(table)), first][:, None]
    table[(table >= 0) & (families != expected) & (families > 0) & (expected > 0)] = -1


def _numbered(
    ranks: Sequence[Collectives], groups: dict[str, int]
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Each rank's group and number within it, the same over ranks; -1: takes no part."""
    shared = [np.array([groups[g] for g in one.groups], np.int64)[one.group] for one in ranks]
    numbers = [np.full(len(one), -1, np.int64) for one in ranks]
    together = [one.together for one in ranks]
    for group in range(len(groups)):
        rows = [np.flatnonzero((s == group) & t) for s, t in zip(shared, together, strict=True)]
        members = [r for r in range(len(ranks)) if len(rows[r])]
        if len(members) and all(_counts(ranks[r].sequence[rows[r]]) for r in members):
            for r in members:
                numbers[r][rows[r]] = _by_count(ranks[r].sequence[rows[r]])
            continue
        for r in members:
            first = members[0]
            shift = 0 if r == first else _shift(ranks[first], rows[first], ranks[r], rows[r])
            # numbers may not be negative: a rank may have begun before the first one
            numbers[r][rows[r]] = np.arange(len(rows[r])) + shift + 2**32
    return list(zip(shared, numbers, strict=True))


def _counts(sequence: NDArray[np.int64]) -> bool:
    """Whether this is a count: told everywhere, and not the same again and again."""
    if (sequence < 0).any():
        return False
    return int(np.unique(sequence, return_counts=True)[1].max()) <= MOST_IN_ONE_COUNT


def _by_count(sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    """The count, and which of the kernels that share it (in order of start)."""
    order = np.argsort(sequence, kind="stable")
    ordered = sequence[order]
    again = np.arange(len(ordered)) - np.searchsorted(ordered, ordered, side="left")
    number = np.empty(len(sequence), np.int64)
    number[order] = ordered * MOST_IN_ONE_COUNT + again
    return number


def _shift(
    one: Collectives, its: NDArray[np.int64], other: Collectives, own: NDArray[np.int64]
) -> int:
    """What to add to the order in `other` to get the order in `one`."""
    few = min(len(its), len(own))
    apart = len(its) - len(own)
    tried: list[tuple[float, int, int]] = []
    for shift in {at + near for at in (0, apart) for near in range(-_NEAR, _NEAR + 1)}:
        low, high = max(0, -shift), min(len(own), len(its) - shift)
        if high - low < max(1, few // 2):
            continue
        mine, theirs = own[low:high], its[low + shift : high + shift]
        same = other.family[mine] == one.family[theirs]
        if same.mean() < 0.9:
            continue
        spread = _spread((one.end[theirs] - other.end[mine])[same])
        tried.append((spread, high - low, shift))
    whole = [t for t in tried if t[1] == few]
    best = min(whole, key=lambda t: (t[0], abs(t[2])), default=None)
    part = min((t for t in tried if _NEAR <= t[1] < few), default=None)
    if part and (best is None or (best[0] > _TELLING_NS and part[0] * 10 < best[0])):
        best = part
    return best[2] if best else 0


def _spread(differences: NDArray[np.int64]) -> float:
    """Median distance from the median; exact also where clocks are hours apart."""
    near = differences - differences[0]
    return float(np.median(np.abs(near - np.median(near))))


def _uneven(ranks: Sequence[Collectives]) -> str:
    counts = [int(one.together.sum()) for one in ranks if len(one)]
    least, most = min(counts, default=0), max(counts, default=0)
    return f"ranks show {least} to {most} collectives" if least * 2 < most else ""

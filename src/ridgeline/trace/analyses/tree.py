"""Sums over a tree given as each row's parent (-1: none): what lies beneath a row, and which rows
lie beneath one of their own kind. One pass a level, so as many as calls are deep."""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def beneath(parent: Rows, own: Rows) -> Rows:
    """Each row's own number and those of everything under it, exact."""
    total = own.astype(np.int64, copy=True)
    levels = _levels(parent)
    for rows in reversed(levels[1:]):
        np.add.at(total, parent[rows], total[rows])
    return total


def repeated(parent: Rows, key: Rows) -> NDArray[np.bool_]:
    """Rows with a row above them of the same key: aten::to inside aten::to."""
    found = np.zeros(len(parent), bool)
    rows = np.flatnonzero(parent >= 0)
    above = parent[rows]
    while len(rows):
        same = key[above] == key[rows]
        found[rows[same]] = True
        above = parent[above]
        go = (above >= 0) & ~same
        rows, above = rows[go], above[go]
    return found


def own_time(parent: Rows, dur: Rows) -> Rows:
    """What each row took without its direct callees; not below 0, where clocks disagree."""
    own = dur.astype(np.int64, copy=True)
    child = np.flatnonzero(parent >= 0)
    np.subtract.at(own, parent[child], dur[child])
    return np.maximum(own, 0)


def inherited(number: Rows, parent: Rows) -> Rows:
    """A row without a number (-1) has that of the nearest row above it that has one."""
    here = np.arange(len(parent))
    source = np.where((number >= 0) | (parent < 0), here, parent)
    while not np.array_equal(further := source[source], source):  # each pass climbs twice as far
        source = further
    return number[source]


def _levels(parent: Rows) -> list[Rows]:
    """Rows by how many rows lie above them."""
    depth = (parent >= 0).astype(np.int64)
    above = parent
    while (linked := above >= 0).any():  # each pass climbs twice as far
        depth = depth + np.where(linked, depth[above], 0)
        above = np.where(linked, above[above], -1)
    order = np.argsort(depth, kind="stable")
    cuts = np.searchsorted(depth[order], np.arange(1, depth.max(initial=0) + 1))
    return np.split(order, cuts)

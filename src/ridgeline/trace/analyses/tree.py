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


def _levels(parent: Rows) -> list[Rows]:
    """Rows by how many rows lie above them."""
    depth = np.zeros(len(parent), np.int64)
    rows = np.flatnonzero(parent >= 0)
    above = parent[rows]
    while len(rows):
        depth[rows] += 1
        above = parent[above]
        go = above >= 0
        rows, above = rows[go], above[go]
    order = np.argsort(depth, kind="stable")
    cuts = np.searchsorted(depth[order], np.arange(1, depth.max(initial=0) + 1))
    return np.split(order, cuts)

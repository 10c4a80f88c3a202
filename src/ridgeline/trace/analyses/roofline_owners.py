"""Which operator answers for each piece of device work: the nearest one whose work is known.

An operator that launches work itself also answers for what its callees launch (a convolution's
backward calls a sum for its bias), so that its time is whole. Where an operator would answer for a
part of its work only, it answers for none: a formula over half the time is a wrong rate.
"""

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.analyses.tree import beneath

Rows = NDArray[np.int64]


def owners(parent: Rows, known: NDArray[np.bool_], launches: Rows) -> Rows:
    """For each operator the one that answers for what it launches; -1: none.

    `known`: operators whose work a formula tells; `launches`: how many pieces each launched.
    """
    found = np.full(len(parent), -1, np.int64)
    rows = np.flatnonzero(launches > 0)
    at = rows
    while len(rows):
        nearest = known[at] & (found[rows] < 0)
        whole = known[at] & (launches[at] > 0)
        take = nearest | whole  # later turns are further out, so the outermost launcher stays
        found[rows[take]] = at[take]
        at = parent[at]
        rows, at = rows[at >= 0], at[at >= 0]
    return found


def whole(
    parent: Rows, owner: Rows, launched: Rows, in_window: Rows, shares: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which operators answer for all work beneath them, and all of it lies in the window.

    `shares`: operators of which a part is another's by design.
    """
    answered = np.zeros(len(parent), np.int64)
    rows = np.flatnonzero(owner >= 0)
    np.add.at(answered, owner[rows], in_window[rows])
    complete = answered == beneath(parent, launched)
    if shares.any():
        all_answered = np.zeros(len(parent), np.int64)
        np.add.at(all_answered, owner[rows], launched[rows])
        complete |= shares & (answered == all_answered)
    return np.asarray(complete & (answered > 0), bool)

"""One thread, one lane: files name the same thread in two ways.

Until 2021 operators carried the thread id as text and runtime calls as a number; some builds write
a call's pthread id where the operators have the system's. Left alone, no call would lie inside the
operator that made it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.columns import Calls, Ops
from ridgeline.trace.trace import Lane


def same_names(lanes: Sequence[Lane]) -> NDArray[np.int32]:
    """For each lane the first one with the same process and thread."""
    first: dict[tuple[str, str], int] = {}
    found = [first.setdefault((lane.pid, lane.tid), i) for i, lane in enumerate(lanes)]
    return np.array(found, np.int32)


def aliases(calls: Calls, ops: Ops, lanes: int) -> NDArray[np.int32]:
    """For each lane the one its calls belong to: that of the operators they name as theirs.

    Only lanes with calls and no operators are moved, and only if one thread's operators own
    at least nine of ten of the calls that name one.
    """
    alias = np.arange(lanes, dtype=np.int32)
    has_ops = np.bincount(ops.lane, minlength=lanes) > 0
    order = np.argsort(ops.external, kind="stable")
    ordered = ops.external[order]
    for lane in np.unique(calls.lane):
        if has_ops[lane]:
            continue
        wanted = calls.external[(calls.lane == lane) & (calls.external > 0)]
        at = np.minimum(np.searchsorted(ordered, wanted), max(len(ordered) - 1, 0))
        held = wanted == ordered[at] if len(ordered) else np.zeros(len(wanted), bool)
        owners = np.bincount(ops.lane[order[at[held]]], minlength=1)
        if held.any() and owners.max() >= 0.9 * owners.sum():
            alias[lane] = owners.argmax()
    return alias

"""Which forward operator made each autograd node: joined by their sequence numbers."""

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.links import Rows
from ridgeline.trace.trace import Trace


def forward_of(trace: Trace, candidates: NDArray[np.bool_]) -> Rows:
    """For each node of the backward the row of its forward operator; -1 for every other operator.

    The counter goes up when a node is made, so of all operators that carry a number the last one
    on the forward thread made the node. `candidates`: which operators may be the answer.
    """
    ops = trace.ops
    found = np.full(len(ops), -1, np.int64)
    named = trace.names_where(ops.name, lambda name: "Backward" in name)
    node = (ops.sequence >= 0) & ((ops.forward_thread > 0) | named)
    forward = np.flatnonzero((ops.sequence >= 0) & (ops.forward_thread <= 0) & ~named & candidates)
    backward = np.flatnonzero(node)
    if not len(backward) or not len(forward):
        return found
    forward = forward[np.argsort(ops.sequence[forward], kind="stable")]
    numbers = ops.sequence[forward]
    at = np.searchsorted(numbers, ops.sequence[backward], side="right") - 1
    held = (at >= 0) & (numbers[np.maximum(at, 0)] == ops.sequence[backward])
    found[backward[held]] = forward[at[held]]
    return found

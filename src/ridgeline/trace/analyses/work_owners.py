"""Which operator of a call tree answers for the work beneath it, so that each is counted once.

`aten::linear` calls `aten::addmm`: both have a formula and the same product, and the inner one
counts, because under autocast only it has the type that is computed in. A convolution's backward
calls a sum for the bias and makes the rest itself: there the outer one counts. So an operator
answers where its own products are more than those of its callees together. Without products the
outermost with a formula answers.
"""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

NOTHING, OWNS, INSIDE = 0, 1, 2
_MORE = 1.001
"""By so much an operator must have more products than its callees: formulas may differ in the last
digit (a bias counted or not)."""


def owning(parent: Rows, known: NDArray[np.bool_], flops: NDArray[np.float64]) -> NDArray[np.int8]:
    """For each operator NOTHING, OWNS, or INSIDE one that does. Callers stand before callees."""
    above = parent.tolist()
    own = np.where(known, flops, 0.0).tolist()
    below = [0.0] * len(above)
    for row in range(len(above) - 1, -1, -1):
        if above[row] >= 0:
            below[above[row]] += max(own[row], below[row])
    state = [NOTHING] * len(above)
    for row, tells in enumerate(known.tolist()):
        if above[row] >= 0 and state[above[row]] != NOTHING:
            state[row] = INSIDE
        elif tells and (own[row] > _MORE * below[row] or not (own[row] or below[row])):
            state[row] = OWNS
    return np.array(state, np.int8)

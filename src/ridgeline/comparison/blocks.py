"""How many calls make a sample.

Sized once more when the arms are warm. Until then a block that a stall had stretched passes for
long enough: on a busy host identical code got blocks of 2 and of 16 calls, and looked up to 20 %
apart.
"""

import math
from collections.abc import Sequence

BLOCK_NS = 10e6
"""A sample's length: 10 ms is 1000 times what the clock, a context switch's cost and the loop
itself leave uncertain, and a stall of a scheduler's slice (3 to 4 ms) does not rule it."""
ALIKE = 3.0
"""Arms whose calls differ by less than this have blocks of as many calls."""
_MOST = 1 << 20


def even_calls(call_ns: Sequence[float]) -> list[int]:
    """For each arm, by its steady time of a call: enough calls for it and all that are alike."""
    fitting = [min(max(math.ceil(BLOCK_NS / max(ns, 1.0)), 1), _MOST) for ns in call_ns]
    return [
        max(calls for calls, other in zip(fitting, call_ns, strict=True) if _alike(ns, other))
        for ns in call_ns
    ]


def _alike(one: float, other: float) -> bool:
    return max(one, other) < ALIKE * max(min(one, other), 1e-9) or one == other

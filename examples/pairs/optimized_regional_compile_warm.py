"""Only the repeated block is compiled; calls between blocks stay in Python.

What full compilation could win here is fusion across blocks and a few calls in Python, so SAME or
slightly SLOWER is to be expected: the point of compiling by region is the cold pair. The source
measures 3.26 × here, but it compares a block compiled in one mode with an MLP compiled in another.
"""

from _regional_compile import TOKENS, Warm, by_block, sequences
from torch import Tensor

ITEMS = TOKENS


def workload() -> tuple[Warm, tuple[Tensor, ...]]:
    return Warm(by_block), sequences()

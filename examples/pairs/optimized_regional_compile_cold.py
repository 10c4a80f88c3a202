"""Only the repeated block is compiled, from nothing; the other blocks reuse it.

The code to compile is one block instead of all of them, and the head start grows with the depth.
"""

from _regional_compile import TOKENS, Cold, by_block, sequences
from torch import Tensor

ITEMS = TOKENS


def workload() -> tuple[Cold, tuple[Tensor, ...]]:
    return Cold(by_block), sequences()

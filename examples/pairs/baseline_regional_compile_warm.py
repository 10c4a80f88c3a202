"""Regional compile, warm: the whole model compiled, steady state over several lengths.

The first call compiles one graph for all lengths.
"""

from _regional_compile import TOKENS, Warm, sequences, whole
from torch import Tensor

ITEMS = TOKENS


def workload() -> tuple[Warm, tuple[Tensor, ...]]:
    return Warm(whole), sequences()

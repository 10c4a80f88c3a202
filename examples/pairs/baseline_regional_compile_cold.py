"""Regional compile, cold: the whole model compiled from nothing, then run over several lengths.

A call forgets every compiled graph, uses an empty cache on disk, compiles and runs: seconds, not
milliseconds. The source forces warm-up and compiles in its set-up, so it cannot show this cost.
"""

from _regional_compile import TOKENS, Cold, sequences, whole
from torch import Tensor

ITEMS = TOKENS


def workload() -> tuple[Cold, tuple[Tensor, ...]]:
    return Cold(whole), sequences()

"""The same reads and writes through the same kind of index, in the order in which memory lies.

Only the numbers in the index differ, so the ratio is the access pattern's and nothing else's.
"""

import torch
from _bandwidth import COUNT, Visit, arrays
from torch import Tensor

ITEMS = COUNT


def workload() -> tuple[Visit, tuple[Tensor, ...]]:
    return Visit(torch.arange(COUNT)), arrays()

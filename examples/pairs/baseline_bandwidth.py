"""Bandwidth: elements visited 32 KB apart, so that each use of 4 bytes moves a whole cache line.

The order is i * 8191 modulo a power of two, as in the source's kernel. It is a deliberately bad
order, chosen to show what a bad order costs; nobody's program starts from it.
"""

import torch
from _bandwidth import COUNT, Visit, arrays
from torch import Tensor

ITEMS = COUNT


def workload() -> tuple[Visit, tuple[Tensor, ...]]:
    return Visit((torch.arange(COUNT) * 8191) % COUNT), arrays()

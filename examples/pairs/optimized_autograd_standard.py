"""The same step through torch.compile: forward and backward become a few fused kernels.

AOTAutograd traces the backward together with the forward. The update stays eager: SGD over lists is
one kernel on a GPU already. The first call compiles.
"""

import torch
from _autograd_standard import BATCH, Step, data
from torch import Tensor

ITEMS = BATCH


def workload() -> tuple[Step, tuple[Tensor, ...]]:
    return Step(torch.compile), data()

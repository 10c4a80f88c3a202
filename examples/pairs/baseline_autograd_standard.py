"""Autograd: a training step of many small operators, run eagerly.

A call puts the weights back and runs forward, backward and SGD, one operator after the other.
"""

from _autograd_standard import BATCH, Step, data
from torch import Tensor

ITEMS = BATCH


def workload() -> tuple[Step, tuple[Tensor, ...]]:
    return Step(), data()

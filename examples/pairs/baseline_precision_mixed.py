"""Precision: forward and backward of a transformer in float32.

Full float32 products, as torch ships: on a GPU that leaves the tensor cores unused, which is why
TF32 is a candidate beside bf16.
"""

from _precision_mixed import BATCH, TOKENS, Step, data
from torch import Tensor

ITEMS = BATCH * TOKENS


def workload() -> tuple[Step, tuple[Tensor, ...]]:
    return Step(), data()

"""Precision: a large linear layer in bfloat16."""

import torch.nn.functional as F
from _precision_fp8 import ROWS, tensors
from torch import Tensor

ITEMS = ROWS


class Linear:
    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def workload() -> tuple[Linear, tuple[Tensor, ...]]:
    x, weight = tensors()
    return Linear(weight), (x,)

"""One matrix product: the same FLOPs, the result written once."""

from collections.abc import Callable

import torch
from _arithmetic_intensity import matrices
from torch import Tensor


def workload() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    return torch.matmul, matrices()

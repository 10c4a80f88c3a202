"""One matrix product: the same FLOPs, the result written once."""

import torch
from _arithmetic_intensity import matrices
from torch import Tensor


def workload() -> tuple[object, tuple[Tensor, ...]]:
    return torch.matmul, matrices()

"""Arithmetic intensity: a matrix product as a sum of thin products.

The textbook's deliberately weak baseline: nobody multiplies like this by choice. Each of the steps
reads and writes the whole result (8 bytes) for 2 × 16 FLOPs an element, 4 FLOP a byte, where one
product over the same numbers has SIDE / 6. What the ratio shows is the price of low intensity.
"""

from collections.abc import Callable

import torch
from _arithmetic_intensity import SIDE, matrices
from torch import Tensor

THIN = 16


def tiled(a: Tensor, b: Tensor) -> Tensor:
    result = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    for k in range(0, SIDE, THIN):
        result.addmm_(a[:, k : k + THIN], b[k : k + THIN])
    return result


def workload() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    return tiled, matrices()

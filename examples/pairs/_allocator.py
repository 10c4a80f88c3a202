"""The work of the allocator pair: temporaries of many sizes, each filled, summed and dropped."""

import unittest

import torch
from _device import DEVICE
from torch import Tensor

MIB = 2**20
SIZES_MIB = (1, 48, 6, 20, 2, 96, 12, 31, 3, 64)
REPEATS = 8
ITEMS = REPEATS * len(SIZES_MIB)


def needs_gpu() -> None:
    if DEVICE != "cuda":
        raise unittest.SkipTest(
            "needs a CUDA device: on a CPU torch hands memory back to the C library, which is "
            "another allocator"
        )


def temporary(seed: Tensor, size_mib: int) -> Tensor:
    """Return the sum of a temporary of this size, which is freed on return."""
    values = torch.empty(size_mib * MIB // 4, device=seed.device)
    values.copy_(seed.expand_as(values))
    return values.sum()


def seed() -> Tensor:
    return torch.full((1,), 0.5, device=DEVICE)

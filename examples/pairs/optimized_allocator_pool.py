"""The same temporaries from a pool of their own (`torch.cuda.MemPool`).

The pool is cached as the rest is, so it is no faster than the default. It keeps these temporaries
apart: they cannot split blocks that others need, and the memory goes when the pool does.
"""

import unittest
from collections.abc import Callable

import torch
from _allocator import ITEMS as ITEMS
from _allocator import REPEATS, SIZES_MIB, needs_gpu, seed, temporary
from torch import Tensor


def workload() -> tuple[Callable[[Tensor], Tensor], tuple[Tensor]]:
    needs_gpu()
    if not hasattr(torch.cuda, "MemPool"):
        raise unittest.SkipTest("needs torch.cuda.MemPool (torch 2.5 or newer)")
    pool = torch.cuda.MemPool()

    def step(start: Tensor) -> Tensor:
        with torch.cuda.use_mem_pool(pool):
            sums = [temporary(start, size) for _ in range(REPEATS) for size in SIZES_MIB]
        return torch.stack(sums)  # outside of the pool, because the result is kept

    return step, (seed(),)

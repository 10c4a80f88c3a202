"""Device memory: every temporary from the driver, and back to it.

`empty_cache` returns each temporary by cudaFree, so the next needs cudaMalloc. Both wait for the
device. It is what PYTORCH_NO_CUDA_MEMORY_CACHING=1 does to a whole process; here both sides of the
pair run in one.
"""

from collections.abc import Callable

import torch
from _allocator import ITEMS as ITEMS
from _allocator import REPEATS, SIZES_MIB, needs_gpu, seed, temporary
from torch import Tensor


def step(start: Tensor) -> Tensor:
    sums = []
    for _ in range(REPEATS):
        for size in SIZES_MIB:
            sums.append(temporary(start, size))
            torch.cuda.empty_cache()
    return torch.stack(sums)


def workload() -> tuple[Callable[[Tensor], Tensor], tuple[Tensor]]:
    needs_gpu()
    return step, (seed(),)

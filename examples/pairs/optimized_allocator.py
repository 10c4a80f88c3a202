"""The same temporaries from the caching allocator, as torch does by default.

A freed block stays with the process, and the next temporary that fits takes it: no call of the
driver, and no wait for the device. The memory stays reserved.
"""

from collections.abc import Callable

import torch
from _allocator import ITEMS as ITEMS
from _allocator import REPEATS, SIZES_MIB, needs_gpu, seed, temporary
from torch import Tensor


def step(start: Tensor) -> Tensor:
    return torch.stack([temporary(start, size) for _ in range(REPEATS) for size in SIZES_MIB])


def workload() -> tuple[Callable[[Tensor], Tensor], tuple[Tensor]]:
    needs_gpu()
    return step, (seed(),)

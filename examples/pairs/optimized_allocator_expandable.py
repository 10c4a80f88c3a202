"""The same temporaries from the caching allocator with expandable segments.

A segment grows by mapping pages behind it, in place of another segment beside it. In steady state
it is no faster; it helps where sizes change from step to step and blocks no longer fit.
"""

import unittest
from collections.abc import Callable

import torch
from _allocator import ITEMS as ITEMS
from _allocator import REPEATS, SIZES_MIB, needs_gpu, seed, temporary
from torch import Tensor


def set_expandable(wanted: bool) -> None:
    torch.cuda.memory._set_allocator_settings(f"expandable_segments:{wanted}")


def step(start: Tensor) -> Tensor:
    """The setting holds for the process, so it is set back for the other side of the pair."""
    set_expandable(True)
    try:
        sums = [temporary(start, size) for _ in range(REPEATS) for size in SIZES_MIB]
    finally:
        set_expandable(False)
    return torch.stack(sums)


def workload() -> tuple[Callable[[Tensor], Tensor], tuple[Tensor]]:
    needs_gpu()
    if not hasattr(torch.cuda.memory, "_set_allocator_settings"):
        raise unittest.SkipTest("this torch cannot change its allocator while it runs")
    return step, (seed(),)

"""Emptying the last-level cache between calls, for `--cold`."""

from collections.abc import Callable

import torch

from ridgeline.machine import processor

_UNKNOWN_CACHE_BYTES = 64 * 2**20


def flusher(device: torch.device) -> Callable[[], object]:
    """A call that leaves nothing of the workload in the device's last-level cache: it writes twice
    its size. (Lines an application pinned as persisting would survive it; torch pins none.)"""
    if device.type == "cuda":
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    else:
        size = processor.cache_bytes()
    buffer = torch.empty(2 * (size or _UNKNOWN_CACHE_BYTES), dtype=torch.uint8, device=device)
    return lambda: buffer.add_(1)

"""Freed memory filled with rubbish before a call.

Memory that a result has just left still holds it: a candidate that returns `torch.empty` of the
right size would be handed the baseline's answer. After this it is handed NaN.
"""

from collections.abc import Iterable

import torch

from ridgeline.equality.calls.outputs import Outputs

MOST_BYTES = 2**28
COPIES = 3
"""An allocator may hand out another block of the same size than the one freed last."""
PATTERN = 0xFF
"""NaN in every float dtype, -1 in every integer."""

Block = tuple[int, str]


def blocks_of(outputs: Iterable[Outputs]) -> tuple[Block, ...]:
    """Sizes and devices of the tensors in some outputs."""
    found: dict[Block, None] = {}
    for each in outputs:
        for leaf in each.leaves:
            if leaf.kind == "tensor" and leaf.values is not None and leaf.device in ("cpu", "cuda"):
                elements = 1
                for size in leaf.shape:
                    elements *= max(size, 0)
                found[elements * leaf.values.itemsize, leaf.device] = None
    return tuple(found)


def poison(blocks: Iterable[Block]) -> int:
    """Take memory of these sizes, spoil it and give it back. Returns how many were spoilt."""
    left = MOST_BYTES
    taken: list[torch.Tensor] = []
    for size, device in blocks:
        if device == "cuda" and not torch.cuda.is_initialized():
            continue
        for _ in range(COPIES):
            if 0 < size <= left:
                left -= size
                try:
                    block = torch.empty(size, dtype=torch.uint8, device=device)
                except RuntimeError:  # a device that is full
                    return len(taken)
                taken.append(block.fill_(PATTERN))
    return len(taken)


def unwritten(values: torch.Tensor) -> torch.Tensor:
    """Where elements are the pattern, bit for bit."""
    if values.is_complex():
        values = torch.view_as_real(values)
    rows = values.contiguous().reshape(-1, 1).view(torch.uint8)
    return (rows == PATTERN).all(dim=1)

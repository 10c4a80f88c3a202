"""A tensor's content in one number, for content that is too large to keep a copy of."""

import torch

CHUNK_WORDS = 2**21
WHOLE_BYTES = 2**28
"""A larger tensor is read in evenly spread chunks that add up to this: reading 10 GB of weights
twice would take longer than most comparisons."""
_FACTOR = -7046029254386353131  # 2**64 over the golden ratio: odd, with bits everywhere


def digest(tensor: torch.Tensor, whole_bytes: int = WHOLE_BYTES) -> int:
    """Equal for equal content, on whatever device; another place or another bit gives another."""
    flat = _bytes(tensor)
    step = max(1, flat.numel() // whole_bytes)
    total, chunk_bytes = flat.numel(), CHUNK_WORDS * 8
    result = total
    for start in range(0, flat.numel(), chunk_bytes * step):
        chunk = flat[start : start + chunk_bytes]
        spare = -chunk.numel() % 8
        if spare:
            chunk = torch.cat([chunk, chunk.new_zeros(spare)])
        words = chunk.clone().view(torch.int64)
        places = torch.arange(start, start + words.numel(), device=words.device) * 2 + 1
        # Wraps around: integer arithmetic gives the same sum in any order.
        mixed = (words ^ (words >> 29)) * (places * _FACTOR)
        result = (result * 31 + int((mixed ^ (mixed >> 32)).sum())) % 2**63
    return result


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().reshape(-1).view(torch.uint8)

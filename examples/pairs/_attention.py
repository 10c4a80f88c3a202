"""Queries, keys and values of the attention pairs."""

import torch
from _device import DEVICE
from torch import Tensor

BATCH, HEADS, TOKENS, WIDTH = (4, 16, 4096, 64) if DEVICE == "cuda" else (1, 2, 2048, 64)
WINDOW = TOKENS // 8
"""How far back a token looks in the sliding window pair."""

# A GPU's fused kernels want 16 bits; a CPU has them for float32.
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shape = (BATCH, HEADS, TOKENS, WIDTH)
    q, k, v = (torch.randn(shape, generator=draw).to(DEVICE, DTYPE) for _ in range(3))
    return q, k, v

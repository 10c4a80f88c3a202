"""The two matrices of the arithmetic intensity pair."""

import torch
from _device import DEVICE
from torch import Tensor

SIDE = 4096 if DEVICE == "cuda" else 1536


def matrices() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(SIDE, SIDE, generator=draw), torch.randn(SIDE, SIDE, generator=draw)
    return a.to(DEVICE), b.to(DEVICE)

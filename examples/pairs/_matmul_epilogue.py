"""The tensors of the epilogue pair: activations, a weight in nn.Linear's layout, a bias."""

import torch
from _device import DEVICE
from torch import Tensor

ROWS, INNER, OUTER = (8192, 4096, 4096) if DEVICE == "cuda" else (4096, 128, 2048)
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, INNER, generator=draw)
    weight = torch.randn(OUTER, INNER, generator=draw) / INNER**0.5
    bias = torch.randn(OUTER, generator=draw)
    x, weight, bias = (t.to(DEVICE, DTYPE) for t in (x, weight, bias))
    return x, weight, bias

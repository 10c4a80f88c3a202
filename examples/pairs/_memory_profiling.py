"""The tensors of the memory pair: hidden states, a vocabulary head, and the words to predict."""

import torch
from _device import DEVICE
from torch import Tensor

TOKENS, WIDTH, VOCABULARY = (8192, 1024, 50304) if DEVICE == "cuda" else (1024, 128, 8192)


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=draw)
    head = torch.randn(VOCABULARY, WIDTH, generator=draw) / WIDTH**0.5
    words = torch.randint(0, VOCABULARY, (TOKENS,), generator=draw)
    return hidden.to(DEVICE), head.to(DEVICE), words.to(DEVICE)

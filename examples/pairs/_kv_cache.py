"""Decoding token by token through a few attention layers; how keys and values are kept is open."""

from typing import Protocol

import torch
import torch.nn.functional as F
from _device import DEVICE
from torch import Tensor, nn

LAYERS, BATCH, HEADS, WIDTH, TOKENS = (
    (4, 64, 16, 1024, 512) if DEVICE == "cuda" else (2, 4, 4, 128, 96)
)
DTYPE = torch.float16 if DEVICE == "cuda" else torch.float32


class Cache(Protocol):
    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep one token's keys and values (batch, heads, 1, width) and return all so far."""
        ...


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: Cache, layer: int) -> Tensor:
        qkv = self.qkv(x).view(BATCH, 1, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, *cache.append(layer, k, v))
        return x + self.out(mixed.transpose(1, 2).reshape(BATCH, 1, WIDTH))


class Decode:
    """A call decodes TOKENS tokens with an empty cache of the given kind at the start."""

    def __init__(self, cache: type[Cache]) -> None:
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS)).to(DEVICE, DTYPE)
        self.cache = cache

    def __call__(self, tokens: Tensor) -> Tensor:
        cache, outputs = self.cache(), []
        with torch.no_grad():
            for position in range(TOKENS):
                x = tokens[:, position : position + 1]
                for index, layer in enumerate(self.layers):
                    x = layer(x, cache, index)
                outputs.append(x)
            return torch.cat(outputs, dim=1)


def tokens() -> tuple[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return (torch.randn(BATCH, TOKENS, WIDTH, generator=draw).to(DEVICE, DTYPE),)

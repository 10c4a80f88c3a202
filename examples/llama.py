"""A Llama-style decoder: grouped-query attention, RMSNorm, SwiGLU, rotary positions.

Shows a model that fits on no laptop being counted on one. On the meta device tensors have shapes
and no data, so 70 billion parameters are built in a second and take no memory.

    ridgeline model examples/llama.py:build_8b --meta
    ridgeline model examples/llama.py:build_70b --meta --train
    ridgeline model examples/llama.py:tiny
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocabulary: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    depth: int
    rope_base: float = 500_000.0
    dtype: torch.dtype = torch.bfloat16


LLAMA_8B = Config(vocabulary=128_256, width=4096, hidden=14_336, heads=32, kv_heads=8, depth=32)
LLAMA_70B = Config(vocabulary=128_256, width=8192, hidden=28_672, heads=64, kv_heads=8, depth=80)
TINY = Config(
    vocabulary=512, width=64, hidden=160, heads=4, kv_heads=2, depth=2, dtype=torch.float32
)


def linear(config: Config, inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=config.dtype)


def rotations(tokens: int, head_width: int, base: float, device: torch.device) -> Tensor:
    """Cosines and sines of each position, stacked: 2 × tokens × head_width/2, in float32."""
    exponents = torch.arange(0, head_width, 2, device=device) / head_width
    angles = torch.arange(tokens, device=device)[:, None] * base**-exponents
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    cos, sin = turn.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.q = linear(config, config.width, config.heads * self.head_width)
        self.k = linear(config, config.width, config.kv_heads * self.head_width)
        self.v = linear(config, config.width, config.kv_heads * self.head_width)
        self.out = linear(config, config.heads * self.head_width, config.width)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(
            rotate(q, turn), rotate(k, turn), v, is_causal=True, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = linear(config, config.width, config.hidden)
        self.up = linear(config, config.width, config.hidden)
        self.down = linear(config, config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.width, eps=1e-5, dtype=config.dtype)
        self.attention = Attention(config)
        self.norm2 = nn.RMSNorm(config.width, eps=1e-5, dtype=config.dtype)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), turn)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width, dtype=config.dtype)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.RMSNorm(config.width, eps=1e-5, dtype=config.dtype)
        self.head = linear(config, config.width, config.vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        config = self.config
        turn = rotations(ids.shape[1], config.width // config.heads, config.rope_base, ids.device)
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, turn)
        return self.head(self.norm(x))


def with_ids(config: Config, batch: int, tokens: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Llama(config), (torch.randint(0, config.vocabulary, (batch, tokens)),)


def build_8b(batch: int = 1, tokens: int = 4096) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return with_ids(LLAMA_8B, batch, tokens)


def build_70b(batch: int = 1, tokens: int = 4096) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return with_ids(LLAMA_70B, batch, tokens)


def tiny(batch: int = 2, tokens: int = 32) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Two layers, 64 wide: milliseconds, for tests and first tries."""
    return with_ids(TINY, batch, tokens)

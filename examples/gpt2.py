"""GPT-2 124M (Radford et al., 2019), twice: with fused attention and with attention written out.

Both compute the same logits from the same weights. The written-out form stores a
heads × tokens × tokens matrix several times a layer, which the fused one never does: compare the
bytes and the activations that --train shows.

    ridgeline model examples/gpt2.py:build
    ridgeline model examples/gpt2.py:build_written_out --train
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocabulary: int = 50257
    context: int = 1024
    width: int = 768
    heads: int = 12
    depth: int = 12
    fused_attention: bool = True


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.fused = config.fused_attention
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        heads = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = self.written_out(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))

    @staticmethod
    def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        tokens = q.shape[-2]
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT2(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self.initialize)

    @staticmethod
    def initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def with_ids(config: Config, batch: int, tokens: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return GPT2(config), (torch.randint(0, config.vocabulary, (batch, tokens)),)


def build(batch: int = 1, tokens: int = 1024) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return with_ids(Config(), batch, tokens)


def build_written_out(batch: int = 1, tokens: int = 1024) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return with_ids(Config(fused_attention=False), batch, tokens)


def tiny(fused_attention: bool = True) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Two layers, 64 wide: milliseconds, for tests and first tries."""
    config = Config(
        vocabulary=512,
        context=64,
        width=64,
        heads=4,
        depth=2,
        fused_attention=fused_attention,
    )
    return with_ids(config, batch=2, tokens=32)

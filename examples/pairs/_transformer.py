"""A stack of transformer blocks without embeddings: several pairs train or compile it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))


class Stack(nn.Module):
    def __init__(
        self, width: int, heads: int, depth: int, block: Callable[[int, int], nn.Module] = Block
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def loss_and_gradients(model: nn.Module, loss: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What a backward pass finds, as fresh tensors: nothing is left behind in the model, so every
    call does the same work and has the same answer."""
    return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))

"""Attention written out: the whole matrix of scores is made, kept and read again.

fault: written-attention
runs on: cpu, gpu
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 100 if device == "cuda" else 60
LAYERS, BATCH, LENGTH, WIDTH = (4, 16, 1024, 1024) if device == "cuda" else (1, 1, 1024, 128)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        mixed = scores.softmax(-1) @ v  # fault
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, max(width // 64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.norm(x))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(WIDTH) for _ in range(LAYERS)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    x = torch.randn(BATCH, LENGTH, WIDTH, device=device)
    for _ in range(STEPS):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

"""Layers whose width is a multiple of 64, as 16-bit tensor cores want it.

fault: misaligned-shape
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, LAYERS, STEPS = 8192, 4, 80
WIDTH = 4096


def main() -> None:
    torch.manual_seed(0)
    layers = [
        nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
        for _ in range(LAYERS)
    ]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    inputs = torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
    targets = torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
    for _ in range(STEPS):
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

"""Batches lie in pinned memory, yet each copy is waited for and nothing runs beside it.

fault: blocking-copy
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS, BATCH, WIDTH, DEPTH = 100, 4096, 2048, 32
FEATURES = 8192


def network() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(FEATURES, WIDTH), nn.ReLU()]
    for _ in range(DEPTH - 4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def main() -> None:
    torch.manual_seed(0)
    device = "cuda"
    model = network().to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    targets = torch.randn(BATCH, WIDTH, device=device, dtype=torch.bfloat16)
    ready = [  # 64 MiB each, pinned
        torch.randn(BATCH, FEATURES).to(torch.bfloat16).pin_memory() for _ in range(4)
    ]
    for step in range(STEPS):
        inputs = ready[step % len(ready)].to(device)  # fault
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"done: {STEPS} steps")


if __name__ == "__main__":
    main()

"""Gradients whose norm is taken, and which are scaled, one parameter at a time.

fault: clip-by-tensor
runs on: cpu, gpu
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 100


def network(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(width, 16))


def clip(parameters: Iterable[nn.Parameter], most: float) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.zeros((), device=gradients[0].device)
    for gradient in gradients:  # fault
        total += gradient.float().square().sum()
    scale = torch.clamp(most / (total.sqrt() + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)


def main() -> None:
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    width, depth, batch = (8192, 12, 256) if gpu else (64, 64, 128)
    with torch.device(device):
        model = network(width, depth).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(batch, width, device=device, dtype=dtype)
    labels = torch.randint(0, 16, (batch,), device=device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        clip(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

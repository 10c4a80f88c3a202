"""An optimizer that updates all parameters in one call.

fault: unfused-optimizer
runs on: cpu, gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 100


def network(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(width, 16))


def main() -> None:
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    width, depth, batch = (8192, 12, 256) if gpu else (128, 64, 128)
    with torch.device(device):
        model = network(width, depth).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(batch, width, device=device, dtype=dtype)
    labels = torch.randint(0, 16, (batch,), device=device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

"""A step of the same thousands of small kernels every time, each launched by Python.

fault: cuda-graph-candidate
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 100
WIDTH, DEPTH, BATCH = 256, 300, 64


def network(width: int, depth: int) -> nn.Module:
    """A deep network whose layers share their weights."""
    layer = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
    return nn.Sequential(*[layer] * depth, nn.Linear(width, 16))


def main() -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = network(WIDTH, DEPTH).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(0, 16, (BATCH,), device="cuda")
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)  # fault
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

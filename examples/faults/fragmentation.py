"""Batches that get longer step by step: no block the allocator has kept is ever large enough.

fault: fragmentation
runs on: gpu
"""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    width, steps = 256, 100
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width),
        nn.ReLU(inplace=True), nn.Linear(width, width), nn.ReLU(inplace=True),
        nn.Linear(width, width),
    ).to(device, torch.bfloat16)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    longest = 4096 * (steps + 40)
    tokens = torch.randn(longest, width, device=device, dtype=torch.bfloat16)
    for length in range(4096 * 40, longest, 4096):
        loss = model(tokens[:length]).square().mean()  # fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"done: {loss.item():.4f}")


if __name__ == "__main__":
    main()

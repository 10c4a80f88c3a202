"""The twin of affinity.py: the program may run on every core it is given.

fault: affinity
runs on: cpu
"""

import os

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 100


def main() -> None:
    torch.manual_seed(0)
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(len(cores))
    model = nn.Sequential(
        nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    inputs, targets = torch.randn(512, 512), torch.randn(512, 512)
    for _ in range(STEPS):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

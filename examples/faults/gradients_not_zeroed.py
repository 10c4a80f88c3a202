"""Gradients are never cleared: each step uses the sum of the gradients of all steps so far.

fault: gradients-not-zeroed
runs on: cpu, gpu
measure: results
"""

import torch
import torch.nn.functional as F
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width = 1024 if device == "cuda" else 128
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, width, device=device)
    labels = torch.randint(0, 10, (256,), device=device)
    for _ in range(100):
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()  # fault
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

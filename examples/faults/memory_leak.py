"""Features of every batch are kept for good, though only the latest are ever read.

fault: memory-leak
runs on: cpu, gpu
measure: memory
"""

from collections import deque

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width)
        )
        self.head = nn.Linear(width, width)
        self.recent: deque[torch.Tensor] = deque()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x)
        self.recent.append(features.detach())  # fault
        return self.head(features)


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, batch = (8192, 8192) if device == "cuda" else (192, 2048)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = Net(width).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.randn(batch, width, device=device, dtype=dtype)
    targets = torch.randn(batch, width, device=device, dtype=dtype)
    for _ in range(200 if device == "cuda" else 150):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"done: {model.recent[-1].float().mean().item():.4f}")


if __name__ == "__main__":
    main()

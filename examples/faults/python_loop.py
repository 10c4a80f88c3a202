"""A layer that is applied to the rows of a batch one by one, in a Python loop.

fault: python-loop
runs on: cpu, gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 80


class Head(nn.Module):
    """A bilinear form of each row with itself, and a score of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.score = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = []
        for row in x:  # fault
            mixed = torch.tanh(self.mix(row)) * row
            scores.append(self.score(mixed))
        return torch.stack(scores)


def network(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, Head(width))


def main() -> None:
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    width, depth, batch = (4096, 64, 128) if gpu else (256, 12, 96)
    with torch.device(device):
        model = network(width, depth).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
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

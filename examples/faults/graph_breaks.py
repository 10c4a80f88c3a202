"""Compiled blocks that hand a number to Python, and so are cut in two.

fault: graph-breaks
runs on: cpu
slow: yes
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.largest: float | torch.Tensor = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.wide(x))
        self.largest = h.detach().amax().item()  # fault
        return self.out(h)


def main() -> None:
    torch.manual_seed(0)
    width, batch = 64, 64
    model = nn.Sequential(*(Block(width) for _ in range(12)))
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    data = torch.randn(batch, width)
    for _ in range(400):
        loss = F.mse_loss(compiled(data), data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"done: {loss.item():.4f}, largest {float(model[0].largest):.3f}")


if __name__ == "__main__":
    main()

"""A table of positions is kept on the host and copied to the device in every forward.

fault: repeated-copy
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS, BATCH, WIDTH, DEPTH = 100, 4096, 2048, 32


class Placed(nn.Module):
    """Adds a table of positions to its input."""

    def __init__(self) -> None:
        super().__init__()
        places = torch.arange(BATCH).unsqueeze(1) / torch.arange(1, WIDTH + 1)
        self.table = places.sin().to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table.to(x.device)  # fault


def network() -> nn.Sequential:
    layers: list[nn.Module] = [Placed()]
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def main() -> None:
    torch.manual_seed(0)
    device = "cuda"
    model = network().to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.randn(BATCH, WIDTH, device=device, dtype=torch.bfloat16)
    targets = torch.randn(BATCH, WIDTH, device=device, dtype=torch.bfloat16)
    for step in range(STEPS):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"done: {STEPS} steps")


if __name__ == "__main__":
    main()

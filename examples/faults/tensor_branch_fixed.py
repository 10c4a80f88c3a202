"""Every layer counts on the device how often an output is too large.

fault: tensor-branch
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS, BATCH, WIDTH, DEPTH = 100, 10240, 2048, 32
LIMIT = 1e3


class Watched(nn.Module):
    """A layer that counts how often an output was too large."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.alarms = torch.zeros((), device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        peak = result.detach().amax()
        self.alarms += peak > LIMIT
        return result


def network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [Watched(nn.Linear(WIDTH, WIDTH)), nn.ReLU()]
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
    watched = [layer for layer in model if isinstance(layer, Watched)]
    print(f"too large: {sum(layer.alarms.item() for layer in watched):.0f} times")
    print(f"done: {STEPS} steps")


if __name__ == "__main__":
    main()

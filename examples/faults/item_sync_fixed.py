"""Every layer's largest output stays on the device until somebody looks at it.

fault: item-sync
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS, BATCH, WIDTH, DEPTH = 100, 10240, 2048, 32


class Watched(nn.Module):
    """A layer that keeps an eye on its largest output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.peak = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        self.peak = result.detach().amax()
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
    print(f"largest output {max(layer.peak.item() for layer in watched):.4f}")
    print(f"done: {STEPS} steps")


if __name__ == "__main__":
    main()

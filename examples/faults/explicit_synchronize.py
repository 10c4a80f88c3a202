"""Each layer is timed by waiting for the device after it, and the waits were left in.

fault: explicit-synchronize
runs on: gpu
"""

import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS, BATCH, WIDTH, DEPTH = 100, 10240, 2048, 32


class Timed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seconds = 0.0

    def forward(self, x: Tensor) -> Tensor:
        began = time.perf_counter()
        result: Tensor = self.inner(x)
        torch.cuda.synchronize()  # fault
        self.seconds += time.perf_counter() - began
        return result


def network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [Timed(nn.Linear(WIDTH, WIDTH)), nn.ReLU()]
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
    timed = [layer for layer in model if isinstance(layer, Timed)]
    print(f"forward {1e3 * sum(layer.seconds for layer in timed) / STEPS:.3f} ms a step")
    print(f"done: {STEPS} steps")


if __name__ == "__main__":
    main()

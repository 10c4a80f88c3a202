"""Each layer is timed by events on the device's own timeline, read after the loop.

fault: explicit-synchronize
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS, BATCH, WIDTH, DEPTH = 100, 10240, 2048, 32


class Timed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def forward(self, x: Tensor) -> Tensor:
        began = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True)
        began.record()
        result: Tensor = self.inner(x)
        ended.record()
        self.marks.append((began, ended))
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
    torch.cuda.synchronize()
    timed = [layer for layer in model if isinstance(layer, Timed)]
    spent = sum(began.elapsed_time(ended) for layer in timed for began, ended in layer.marks)
    print(f"forward {spent / STEPS:.3f} ms a step")
    print(f"done: {STEPS} steps")


if __name__ == "__main__":
    main()

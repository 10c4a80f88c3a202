"""The largest outputs of 32 units are printed as a tensor on the device, every step.

fault: print-tensor
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS, BATCH, WIDTH, DEPTH = 100, 10240, 2048, 32


def network() -> nn.Sequential:
    layers: list[nn.Module] = []
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
        outputs = model(inputs)
        loss = F.mse_loss(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        peaks = outputs.detach().amax(0)[:32]
        print(f"step {step:4d}  peaks", peaks)  # fault
        if step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"done: {STEPS} steps")


if __name__ == "__main__":
    main()

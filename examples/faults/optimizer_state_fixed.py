"""Momentum keeps one more copy of the model, not two.

fault: optimizer-state
runs on: gpu
measure: memory
"""

import torch
from torch import nn

WIDTH = 16384


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    whole = torch.cuda.get_device_properties(device).total_memory
    # Parameters, gradients and two states, all bfloat16: 0.6 of the device.
    depth = int(0.6 * whole / (4 * WIDTH * WIDTH * 2))
    with device:
        layers = [nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(depth)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9, fused=True)
    inputs = torch.randn(512, WIDTH, device=device, dtype=torch.bfloat16)
    for _ in range(24):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"done: {loss.item():.4f}")


if __name__ == "__main__":
    main()

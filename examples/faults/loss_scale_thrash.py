"""A gradient scaler that doubles its scale after every good step: every other one overflows.

fault: loss-scale-thrash
runs on: gpu
measure: kept
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, BATCH, LAYERS, STEPS = 4096, 8192, 4, 100


def main() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False, device="cuda") for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda", growth_interval=1)  # fault
    inputs = torch.randn(BATCH, WIDTH, device="cuda")
    targets = torch.randn(BATCH, WIDTH, device="cuda")
    for _ in range(STEPS):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}, scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()

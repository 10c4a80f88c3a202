"""Wide layers trained in float32 with TF32 forbidden, so that tensor cores stand idle.

fault: tf32-off
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, BATCH, LAYERS, STEPS = 8192, 256, 6, 100


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")  # fault
    layers = [nn.Linear(WIDTH, WIDTH, bias=False, device="cuda") for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    inputs = torch.randn(BATCH, WIDTH, device="cuda")
    targets = torch.randn(BATCH, WIDTH, device="cuda")
    for _ in range(STEPS):
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

"""Wide layers trained in float32 (TF32 is on) where bfloat16 would run twice as fast.

fault: autocast-missing
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, BATCH, LAYERS, STEPS = 4096, 16384, 4, 80


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    layers = [nn.Linear(WIDTH, WIDTH, bias=False, device="cuda") for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    inputs = torch.randn(BATCH, WIDTH, device="cuda")
    targets = torch.randn(BATCH, WIDTH, device="cuda")
    for _ in range(STEPS):
        loss = F.mse_loss(model(inputs), targets)  # fault
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

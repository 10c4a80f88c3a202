"""A short program that does without compiling.

fault: compile-unpaid
runs on: cpu, gpu
measure: whole
slow: yes
"""

import os

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # as on a machine that never ran it

import torch
import torch.nn.functional as F
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, batch = (4096, 16384) if device == "cuda" else (1024, 512)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width)
    ).to(device, dtype)  # fmt: skip
    step_model = model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    data = torch.randn(batch, width, device=device, dtype=dtype)
    for _ in range(60):
        loss = F.mse_loss(step_model(data), data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"done: {loss.item():.4f}")


if __name__ == "__main__":
    main()

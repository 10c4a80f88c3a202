"""bfloat16 autocast on a CPU that has no such instructions and has to emulate them.

fault: emulated-bf16
runs on: cpu
emulates: bfloat16
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, BATCH, STEPS = 512, 128, 80


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    inputs, targets = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    for _ in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):  # fault
            outputs = model(inputs)
        loss = F.mse_loss(outputs.float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

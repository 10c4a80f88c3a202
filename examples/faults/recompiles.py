"""A compiled step that is compiled again for each length of the batch.

fault: recompiles
runs on: cpu, gpu
measure: whole
slow: yes
"""

import torch
import torch.nn.functional as F
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, unit = (4096, 2048) if device == "cuda" else (256, 128)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width)
    ).to(device, dtype)  # fmt: skip
    compiled = torch.compile(model, dynamic=False, backend="aot_eager")  # fault
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    data = torch.randn(12 * unit, width, device=device, dtype=dtype)
    for step in range(320):
        length = unit * (4 + min(step // 12, 7))  # eight lengths
        loss = F.mse_loss(compiled(data[:length]), data[:length])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"done: {loss.item():.4f}")


if __name__ == "__main__":
    main()

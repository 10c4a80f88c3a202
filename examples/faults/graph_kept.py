"""A loss on held-out data is kept each step, and with it the graph and all its activations.

fault: graph-kept
runs on: cpu, gpu
measure: memory
"""

import torch
import torch.nn.functional as F
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, batch = (8192, 4096) if device == "cuda" else (192, 1024)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width),
        nn.ReLU(inplace=True), nn.Linear(width, width),
    ).to(device, dtype)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.randn(batch, width, device=device, dtype=dtype)
    targets = torch.randn(batch, width, device=device, dtype=dtype)
    held_inputs = torch.randn(batch, width, device=device, dtype=dtype)
    held_targets = torch.randn(batch, width, device=device, dtype=dtype)
    history: list[torch.Tensor] = []
    for _ in range(200 if device == "cuda" else 150):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        held_loss = (model(held_inputs) - held_targets).abs().mean()
        history.append(held_loss)  # fault
    print(f"done: {history[0].item():.4f} to {history[-1].item():.4f}")


if __name__ == "__main__":
    main()

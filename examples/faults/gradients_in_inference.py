"""A program that only answers, and still records every operator for a backward that never comes.

fault: gradients-in-inference
runs on: cpu, gpu
measure: memory
"""

import torch
from torch import nn


def network(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 16))


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, batch, depth = (4096, 16384, 12) if device == "cuda" else (128, 8192, 10)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = network(width, depth).to(device, dtype).eval()
    requests = torch.randn(batch, width, device=device, dtype=dtype)
    best = torch.zeros(batch, device=device, dtype=torch.long)
    for _ in range(100):
        scores = model(requests)  # fault
        best = scores.argmax(dim=1)
    print(f"done: {int(best[0])}")


if __name__ == "__main__":
    main()

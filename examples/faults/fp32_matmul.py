"""One fault: large matrix products, strictly float32 as PyTorch's defaults have it.

Tensor cores stand idle. Expected: compute-bound, at a small part of what the GPU can do in a lower
precision.

    ridgeline run examples/faults/fp32_matmul.py
    ridgeline run examples/faults/fp32_matmul.py --small
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--small", action="store_true", help="512 wide, 256 samples")
    args = parser.parse_args()
    torch.manual_seed(0)
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    width, batch = (512, 256) if args.small else (8192, args.batch)
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(batch, width, device=device)
    targets = torch.randn(batch, width, device=device)
    for step in range(args.steps):
        loss = F.mse_loss(model(inputs), targets)  # the fault: nothing here is below float32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"done: {args.steps} steps")


if __name__ == "__main__":
    main()

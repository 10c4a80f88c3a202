"""One fault: `.item()` on every parameter's gradient, every step.

Each call waits until the device has done all it was given, so the device then waits for the host,
nearly 200 times a step; and its kernels are small. Expected: launch/overhead-bound.

    ridgeline run examples/faults/item_in_loop.py
    ridgeline run examples/faults/item_in_loop.py --small
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def network(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--small", action="store_true", help="8 layers, 32 wide, for a CPU")
    args = parser.parse_args()
    torch.manual_seed(0)
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    width, depth = (32, 8) if args.small else (256, 48)
    model = network(width, depth).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(args.batch, width, device=device)
    labels = torch.randint(0, 10, (args.batch,), device=device)
    for step in range(args.steps):
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        largest = 0.0
        for parameter in model.parameters():
            if parameter.grad is not None:
                largest = max(largest, parameter.grad.norm().item())  # the fault
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}  largest gradient {largest:.4f}")
    print(f"done: {args.steps} steps")


if __name__ == "__main__":
    main()

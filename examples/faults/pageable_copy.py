"""One fault: large batches copied from pageable memory, each copy waited for.

fault: pageable-copy
runs on: gpu

The driver first copies pageable memory into a buffer of its own, so the copy runs at a fraction of
the bus and nothing else runs meanwhile. Expected on a GPU: transfer-bound. (On a CPU `.to()` copies
nothing, and there is no such fault.)

    ridgeline run examples/faults/pageable_copy.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--small", action="store_true", help="16 samples of 32 pixels")
    args = parser.parse_args()
    torch.manual_seed(0)
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    batch, pixels = (16, 32) if args.small else (args.batch, 224)
    # Whole batches, ready in memory: 294 MiB each at the default size; reading one costs nothing.
    ready = [
        (torch.randn(batch, 3, pixels, pixels), torch.randint(0, 10, (batch,))) for _ in range(4)
    ]
    model = nn.Sequential(
        nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * (pixels // 8) ** 2, 128), nn.ReLU(),
        nn.Linear(128, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for images, labels in DataLoader(ready, batch_size=None):
            images, labels = images.to(device), labels.to(device)  # fault
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"step {step:4d}  loss {loss.item():.4f}")
            step += 1
            if step == args.steps:
                break
    print(f"done: {args.steps} steps")


if __name__ == "__main__":
    main()

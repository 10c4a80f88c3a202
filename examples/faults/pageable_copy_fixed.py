"""Large batches in pinned memory, copied at the full rate of the bus and not waited for.

fault: pageable-copy
runs on: gpu

The step is still mostly copying: it moves 294 MiB for hardly any work.
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
    pinned = device.type == "cuda"
    ready = [
        (
            torch.randn(batch, 3, pixels, pixels, pin_memory=pinned),
            torch.randint(0, 10, (batch,), pin_memory=pinned),
        )
        for _ in range(4)
    ]
    model = nn.Sequential(
        nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * (pixels // 8) ** 2, 128), nn.ReLU(),
        nn.Linear(128, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while step < args.steps:
        for images, labels in DataLoader(ready, batch_size=None):
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
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

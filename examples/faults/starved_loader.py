"""One fault: a slow transform, run in the training process itself (no workers).

The device waits for pictures most of the time. Expected: input-bound, at `soften`.

    ridgeline run examples/faults/starved_loader.py
    ridgeline run --python examples/faults/starved_loader.py --small
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


def soften(image: Tensor, times: int) -> Tensor:
    """Blur, again and again: a stand-in for decoding and augmenting."""
    for _ in range(times):
        image = F.avg_pool2d(image, kernel_size=3, stride=1, padding=1)
    return image


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, length: int, pixels: int) -> None:
        self.length = length
        self.originals = torch.rand(64, 3, pixels, pixels)
        self.labels = torch.randint(0, 10, (64,))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        at = index % len(self.originals)
        return soften(self.originals[at], times=10), self.labels[at]


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--small", action="store_true", help="48 pixels, for a CPU")
    args = parser.parse_args()
    torch.manual_seed(0)
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    loader = DataLoader(Pictures(args.steps * args.batch, 48 if args.small else 224), args.batch)
    model = network(4 if args.small else 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (images, labels) in enumerate(loader):
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"done: {args.steps} steps")


if __name__ == "__main__":
    main()

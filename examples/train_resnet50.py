"""ResNet-50 trained on made-up images: plain PyTorch with its defaults, as most scripts are.

On a large GPU a batch of 32 keeps the host busier than the device: some 500 kernels a step, most
of them shorter than it takes to launch them.

    python examples/train_resnet50.py --steps 100
    python examples/train_resnet50.py --steps 100 --resident      nothing to load: the model alone
    ridgeline run examples/train_resnet50.py --steps 100
    ridgeline run examples/train_resnet50.py --small --steps 40      on a CPU, in seconds
"""

import argparse

import torch
import torch.nn.functional as F
from resnet import resnet18, resnet50
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class MadeUpImages(Dataset[tuple[Tensor, int]]):
    """`length` samples out of 256 images kept in memory: reading one costs next to nothing."""

    def __init__(self, length: int, pixels: int, classes: int) -> None:
        self.length = length
        self.images = torch.randn(256, 3, pixels, pixels)
        self.labels = torch.randint(0, classes, (256,)).tolist()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        at = index % len(self.images)
        return self.images[at], self.labels[at]


class ResidentImages(Dataset[tuple[Tensor, Tensor]]):
    """The same, all on the device: a batch is a slice of them, as most benchmarks have it."""

    def __init__(self, length: int, pixels: int, classes: int, device: torch.device) -> None:
        self.length = length
        self.images = torch.randn(1024, 3, pixels, pixels, device=device)
        self.labels = torch.randint(0, classes, (1024,), device=device)

    def __len__(self) -> int:
        return self.length

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        first = indices[0] % (len(self.images) - len(indices) + 1)
        batch = slice(first, first + len(indices))
        return self.images[batch], self.labels[batch]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--resident", action="store_true", help="all images on the device")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--small", action="store_true", help="ResNet-18, 32 pixels, no workers")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    classes, pixels = (10, 32) if args.small else (1000, 224)
    length = args.steps * args.batch
    if args.resident:
        resident = ResidentImages(length, pixels, classes, device)
        loader = DataLoader(resident, batch_size=args.batch, collate_fn=lambda batch: batch)
    else:
        loader = DataLoader(
            MadeUpImages(length, pixels, classes),
            batch_size=args.batch,
            num_workers=0 if args.small else args.workers,
            pin_memory=device.type == "cuda",
        )
    model = (resnet18(classes) if args.small else resnet50(classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    model.train()
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"done: {args.steps} steps of {args.batch} images, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

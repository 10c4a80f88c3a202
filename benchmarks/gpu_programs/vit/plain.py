"""Train torchvision's ViT-B/16 on images that are made and resized as they are loaded."""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.models import VisionTransformer, vit_b_16

sys.path.append(str(Path(__file__).resolve().parents[1]))
from step_timer import StepTimer

NUM_CLASSES = 1000


class SyntheticImages(Dataset):
    """Images of 320 x 320 bytes: the same index always gives the same image."""

    def __init__(self, length, image_size):
        self.length = length
        self.transform = transforms.Compose(
            [
                transforms.Resize(image_size + 32, antialias=True),
                transforms.CenterCrop(image_size),
                transforms.ConvertImageDtype(torch.float32),
                transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randint(0, 256, (3, 320, 320), dtype=torch.uint8, generator=generator)
        return self.transform(image), index % NUM_CLASSES


def build(small):
    if small:
        return VisionTransformer(
            image_size=32, patch_size=16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64
        )
    return vit_b_16(weights=None)


def make_dataset(small):
    return SyntheticImages(length=64, image_size=32) if small else SyntheticImages(6400, 224)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="a tiny model, for a smoke test")
    parser.add_argument("--time", action="store_true", help="print milliseconds a step at the end")
    parser.add_argument("--log-every", type=int, default=50)
    return parser.parse_args()


def main():
    args = parse_args()
    if args.small:
        args.batch_size, args.workers = 4, 1
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader = DataLoader(
        make_dataset(args.small),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
    )
    model = build(args.small).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    timer = StepTimer(args.steps, args.time)

    step = 0
    model.train()
    while step < args.steps:
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % args.log_every == 0:
                print(f"step {step}: loss {loss.item():.4f}")
            timer.tick()
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()

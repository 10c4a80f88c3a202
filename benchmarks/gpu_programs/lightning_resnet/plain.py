"""Train torchvision's ResNet-50 as a Lightning module."""

import argparse
import sys
from pathlib import Path

import lightning as L
import torch
import torch.nn as nn
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18, resnet50

sys.path.append(str(Path(__file__).resolve().parents[1]))
from step_timer import StepTimer

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Images(Dataset):
    def __init__(self, length, size):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(
            0, 256, (length, 3, size, size), dtype=torch.uint8, generator=generator
        )
        self.labels = torch.randint(0, 1000, (length,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index].float() / 255
        return (image - MEAN) / STD, self.labels[index]


class Classifier(L.LightningModule):
    def __init__(self, small=False):
        super().__init__()
        self.model = resnet18() if small else resnet50()
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.model(images)
        loss = self.criterion(logits, labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


class Report(Callback):
    def __init__(self, every, timer):
        self.every = every
        self.timer = timer

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        step = trainer.global_step - 1
        if step % self.every == 0:
            print(f"step {step}: loss {outputs['loss'].item():.4f}")
        self.timer.tick()


def make_dataset(small):
    return Images(length=64, size=32) if small else Images(length=4096, size=224)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--small", action="store_true", help="a tiny model, for a smoke test")
    parser.add_argument("--time", action="store_true", help="print milliseconds a step at the end")
    parser.add_argument("--log-every", type=int, default=50)
    return parser.parse_args()


def main():
    args = parse_args()
    L.seed_everything(0)
    if args.small:
        args.batch_size = 8
    loader = DataLoader(
        make_dataset(args.small),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=1 if args.small else 4,
    )
    trainer = L.Trainer(
        max_steps=args.steps,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        callbacks=[Report(args.log_every, StepTimer(args.steps, args.time))],
    )
    trainer.fit(Classifier(args.small), loader)


if __name__ == "__main__":
    main()

"""A small classifier trained on samples from a slow store: plain PyTorch with its defaults.

Each sample is one request to the store, and the answer takes 2 ms: what a network file system or an
object store takes, where the time goes to waiting and not to work. Here it is a sleep, so that the
example needs no network and waits as long on every machine. A loader without workers (PyTorch's
default) waits for one sample after the other while the model does nothing; workers wait side by
side, and while the model trains.

    python examples/train_slow_loader.py --steps 100
    ridgeline run examples/train_slow_loader.py
    ridgeline optimize --budget 2m examples/train_slow_loader.py
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

KEPT = 256


class SlowStore(Dataset[tuple[Tensor, int]]):
    """`length` samples out of 256, of ten classes; each is asked for by a request of its own."""

    def __init__(self, length: int, answer_s: float) -> None:
        self.length = length
        self.answer_s = answer_s
        self.labels = torch.arange(KEPT) % 10
        centres = torch.randn(10, 128)
        self.signals = centres[self.labels] + torch.randn(KEPT, 128)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.answer_s)
        return self.signals[index % KEPT], int(self.labels[index % KEPT])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--answer-ms", type=float, default=2.0, help="what the store takes")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    store = SlowStore(args.steps * args.batch, args.answer_ms / 1e3)
    loader = DataLoader(store, batch_size=args.batch, shuffle=True)
    model = nn.Sequential(
        nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (signals, labels) in enumerate(loader):
        loss = F.cross_entropy(model(signals.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"done: {args.steps} steps of {args.batch} samples, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

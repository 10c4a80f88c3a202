"""The twin of many_workers.py: a thread each.

fault: many-workers
runs on: cpu, gpu
"""

import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH, STEPS = 32, 90


class Pictures(Dataset[tuple[Tensor, int]]):
    def __init__(self, length: int) -> None:
        self.length = length
        self.originals = torch.rand(16, 3, 128, 128)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = self.originals[index % 16]
        for _ in range(8):
            picture = (picture * 1.1 - 0.05).clamp(0, 1)
        return F.adaptive_avg_pool2d(picture.mean(0, keepdim=True), 16).flatten(), index % 10


def prepare(worker: int) -> None:
    torch.manual_seed(worker)
    torch.set_num_threads(1)


class Network(nn.Module):
    """Every sample is looked at from many places: much work a sample, whatever it is made of."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.register_buffer("places", torch.randn(places, 256))
        self.body = nn.Sequential(
            nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x[:, None] + self.places).mean(1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data, pinned = Pictures(STEPS * BATCH), device == "cuda"
    workers = min(os.cpu_count() or 1, 8)
    loader = DataLoader(data, BATCH, num_workers=workers, worker_init_fn=prepare, pin_memory=pinned)
    model = Network(*((1024, 3072) if device == "cuda" else (96, 256))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, fused=True)
    loss = torch.zeros(())
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

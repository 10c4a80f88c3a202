"""The twin of few_workers.py: eight workers wait beside each other.

fault: few-workers
runs on: cpu, gpu
"""

import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH, STEPS = 8, 100


class Remote(Dataset[tuple[Tensor, int]]):
    """Samples from a store that answers after 5 ms."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.stored = torch.randn(512, 256)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(0.005)
        return self.stored[index % 512], index % 10


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
    data, pinned = Remote(STEPS * BATCH), device == "cuda"
    loader = DataLoader(data, BATCH, num_workers=8, pin_memory=pinned)
    model = Network(*((4096, 3072) if device == "cuda" else (128, 256))).to(device)
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

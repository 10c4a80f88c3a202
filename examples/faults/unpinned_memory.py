"""Large batches copied to the GPU from memory that is not pinned.

fault: unpinned-memory
runs on: gpu
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH, STEPS = 32, 120


class Volumes(Dataset[tuple[Tensor, int]]):
    """Half a megabyte a sample."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.stored = torch.randn(64, 1024, 128)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.stored[index % 64], index % 10


class Network(nn.Module):
    """The same layers at each of 1024 places."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.register_buffer("places", torch.randn(places, 128))
        self.body = nn.Sequential(
            nn.Linear(128, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x + self.places).mean(1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda"
    data = Volumes(STEPS * BATCH)
    loader = DataLoader(data, BATCH, num_workers=6)  # fault
    model = Network(1024, 3072).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, fused=True)
    loss = torch.zeros(())
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

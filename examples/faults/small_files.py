"""A sample made of 48 small files, each opened and read for itself.

fault: small-files
runs on: cpu, gpu
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH, STEPS = 32, 90


class Parts(Dataset[tuple[Tensor, int]]):
    """A file each for 48 stretches of a signal."""

    def __init__(self, folder: Path, length: int) -> None:
        self.folder, self.length = folder, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        parts = []
        for part in range(48):
            stored = (self.folder / f"{index % 32}-{part}.bin").read_bytes()  # fault
            parts.append(np.frombuffer(stored, np.float32))
        return torch.from_numpy(np.concatenate(parts)[:256]), index % 10


def store(folder: Path) -> None:
    """32 samples of 48 parts."""
    values = torch.randn(32, 48, 16).numpy()
    for sample in range(32):
        for part in range(48):
            values[sample, part].tofile(folder / f"{sample}-{part}.bin")


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
    temporary = tempfile.TemporaryDirectory()  # removed where the program ends
    folder = Path(temporary.name)
    store(folder)
    loader = DataLoader(Parts(folder, STEPS * BATCH), BATCH, pin_memory=device == "cuda")
    model = Network(*((1024, 3072) if device == "cuda" else (32, 256))).to(device)
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

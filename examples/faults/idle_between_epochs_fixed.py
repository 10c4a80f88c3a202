"""The twin of idle_between_epochs.py: one checkpoint, when training is done.

fault: idle-between-epochs
runs on: cpu, gpu
measure: whole
"""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

EPOCHS = 10
STEPS = 12


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(32_000, 1024)
        self.table.weight.requires_grad_(False)
        self.layers = nn.Sequential(
            nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 256),
        )  # fmt: skip

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layers(self.table(tokens))


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    gpu = device == "cuda"
    width, batch = (8192, 16384) if gpu else (256, 512)
    model = Model(width).to(device, torch.bfloat16 if gpu else torch.float32)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-3, fused=True)
    tokens = torch.randint(32_000, (batch,), device=device)
    labels = torch.randint(256, (batch,), device=device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint.pt")
        for _ in range(EPOCHS):
            for _ in range(STEPS):
                loss = F.cross_entropy(model(tokens), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        torch.save(model.state_dict(), path)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

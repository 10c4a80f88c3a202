"""A large table of embeddings, a few rows used a step, and a gradient of those rows alone.

fault: dense-embedding-gradient
runs on: cpu, gpu
"""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 70 if device == "cuda" else 60
ROWS, BATCH, WIDTH = (20_000_000, 16384, 4096) if device == "cuda" else (250_000, 512, 512)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 64, sparse=True)
        self.body = nn.Sequential(
            nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1),
        )  # fmt: skip

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.body(self.table(items)).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    items = torch.randint(ROWS, (STEPS, BATCH), device=device)
    scores = torch.randn(BATCH, device=device)
    for step in range(STEPS):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = F.mse_loss(model(items[step]), scores)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

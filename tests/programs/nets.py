"""Models and data small enough for a step of a millisecond."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

WIDTH, CLASSES = 8, 3


def mlp(outputs: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, outputs))


def labelled(samples: int) -> TensorDataset:
    return TensorDataset(torch.randn(samples, WIDTH), torch.randint(0, CLASSES, (samples,)))


class Blocks(nn.Module):
    """Two blocks in a row, for wrappers that want something repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)

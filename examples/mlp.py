"""A plain multilayer perceptron: almost nothing but matrix products.

Shows the simplest roofline there is. At batch 64 each weight read from memory is used 64 times;
make the batch 1 and the same layers become limited by memory instead of arithmetic.

    ridgeline model examples/mlp.py:build
    ridgeline model examples/mlp.py:build --train
"""

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(features, hidden)
        self.hidden = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))
        self.leave = nn.Linear(hidden, classes)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.enter(x))
        for layer in self.hidden:
            x = self.activation(layer(x))
        return self.leave(x)


def build(batch: int = 64) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = MLP(features=1024, hidden=2048, classes=1000, depth=3)
    return model, (torch.randn(batch, 1024),)

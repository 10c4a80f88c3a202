"""A small image classifier: convolution, batch norm, ReLU, three times over.

Shows that parameters and work live in different places: the first stages hold few weights and do
much of the work, and the norms and activations between them cost bytes rather than FLOPs.

    ridgeline model examples/cnn.py:build
    ridgeline model examples/cnn.py:build --train
"""

import torch
from torch import Tensor, nn


def stage(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3×3 convolutions, then half the resolution."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


class CNN(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(stage(3, 32), stage(32, 64), stage(64, 128))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.features(images))
        return self.classifier(x.flatten(1))


def build(batch: int = 8) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return CNN(), (torch.randn(batch, 3, 64, 64),)

"""ResNet-18 and ResNet-50 (He et al., 2015; the stride sits in the 3×3 convolution, as usual now).

Shows a model sized by its input: `build` gives only the module, so name the input on the command
line and see the work grow with the pixels while the parameters stand still.

    ridgeline model examples/resnet.py:build --input 32x3x224x224
    ridgeline model examples/resnet.py:resnet18 --input 32x3x224x224 --train
"""

from torch import Tensor, nn


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Residual(nn.Module):
    """Adds what the branch computes to the input, projected where the shapes differ."""

    expansion: int

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        )

    def branch(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.branch(x) + self.shortcut(x))


class BasicBlock(Residual):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__(inputs, width, stride)
        self.conv1 = convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)

    def branch(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(x))


class Bottleneck(Residual):
    """1×1 down, 3×3, 1×1 up to four times the width."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__(inputs, 4 * width, stride)
        self.conv1 = convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, 4 * width, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)

    def branch(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.bn3(self.conv3(x))


class ResNet(nn.Module):
    def __init__(
        self, block: type[Residual], depths: tuple[int, int, int, int], classes: int = 1000
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 64, 7, stride=2),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        stages: list[nn.Module] = []
        inputs = 64
        for i, depth in enumerate(depths):
            width = 64 * 2**i
            blocks: list[nn.Module] = []
            for j in range(depth):
                # Every stage but the first halves the resolution, in its first block.
                blocks.append(block(inputs, width, stride=2 if i > 0 and j == 0 else 1))
                inputs = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stages(self.stem(images))
        return self.classifier(self.pool(x).flatten(1))


def resnet18(classes: int = 1000) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), classes)


def resnet50(classes: int = 1000) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)


def build() -> ResNet:
    return resnet50()

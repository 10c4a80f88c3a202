"""Vision models of the matrix. ResNets come from examples/; the two ViTs differ in one thing: whose
attention they call."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.resnet import resnet18, resnet50
from tests.models.row import Built, attention, convolution, linear


def halved(pixels: int) -> int:
    """What a stride of 2 leaves, with the padding that keeps a stride of 1 the same size."""
    return (pixels + 1) // 2


def resnet18_macs(batch: int, pixels: int) -> int:
    pixels = halved(pixels)
    macs = convolution(batch, 3, 64, (7, 7), (pixels, pixels))
    pixels = halved(pixels)  # the pool
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            if stage > 0 and block == 0:
                pixels = halved(pixels)
                macs += convolution(batch, inputs, width, (1, 1), (pixels, pixels))
            macs += convolution(batch, inputs, width, (3, 3), (pixels, pixels))
            macs += convolution(batch, width, width, (3, 3), (pixels, pixels))
            inputs = width
    return macs + linear(batch, 512, 1000)


def resnet50_macs(batch: int, pixels: int) -> int:
    pixels = halved(pixels)
    macs = convolution(batch, 3, 64, (7, 7), (pixels, pixels))
    pixels = halved(pixels)
    inputs = 64
    for stage, (width, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(depth):
            # The first 1×1 still sees the old resolution: the stride is in the 3×3.
            macs += convolution(batch, inputs, width, (1, 1), (pixels, pixels))
            if stage > 0 and block == 0:
                pixels = halved(pixels)
            macs += convolution(batch, width, width, (3, 3), (pixels, pixels))
            macs += convolution(batch, width, 4 * width, (1, 1), (pixels, pixels))
            if block == 0:
                macs += convolution(batch, inputs, 4 * width, (1, 1), (pixels, pixels))
            inputs = 4 * width
    return macs + linear(batch, 2048, 1000)


def resnet18_small() -> Built:
    return resnet18(), (torch.randn(1, 3, 64, 64),)


def resnet50_small() -> Built:
    return resnet50(), (torch.randn(1, 3, 64, 64),)


BATCH, PIXELS, PATCH, WIDTH, HEADS, DEPTH, CLASSES = 2, 64, 8, 192, 4, 2, 100
TOKENS = (PIXELS // PATCH) ** 2 + 1


class ModuleAttention(nn.Module):
    """As torchvision's ViT: nn.MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class FunctionalAttention(nn.Module):
    """As timm's ViT: F.scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ViTBlock(nn.Module):
    def __init__(self, mixer: type[nn.Module]) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = mixer()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, mixer: type[nn.Module]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.summary = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, TOKENS, WIDTH))
        self.blocks = nn.Sequential(*(ViTBlock(mixer) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.summary.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit_module() -> Built:
    return ViT(ModuleAttention), (torch.randn(BATCH, 3, PIXELS, PIXELS),)


def vit_functional() -> Built:
    return ViT(FunctionalAttention), (torch.randn(BATCH, 3, PIXELS, PIXELS),)


VIT_MACS = (
    convolution(BATCH, 3, WIDTH, (PATCH, PATCH), (PIXELS // PATCH, PIXELS // PATCH))
    + DEPTH
    * (
        linear(BATCH * TOKENS, WIDTH, 4 * WIDTH)  # q, k, v and the way out
        + attention(BATCH, TOKENS, TOKENS, WIDTH)
        + 2 * linear(BATCH * TOKENS, WIDTH, 4 * WIDTH)
    )
    + linear(BATCH, WIDTH, CLASSES)
)

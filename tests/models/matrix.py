"""The 27 rows: models on which FLOP counters are known to differ, each with its truth by hand.

Sizes are scaled down to run in milliseconds; what makes each row hard is kept. Dimensions differ
within a row, so that a formula with two of them crossed cannot come out right, and are wide enough
that elementwise work is about 1 % (a tool that counts it too is not called wrong for that), while
attention's square is 4 % or more (a tool that loses it is).
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from tests.models import language, vision
from tests.models.blocks import (
    CheckpointedMLP,
    FourTimes,
    MixtureOfExperts,
    Product,
    SelfAttention,
    TiedHead,
)
from tests.models.row import (
    REAL_ONLY,
    Apply,
    Built,
    Row,
    attention,
    convolution,
    linear,
)

randn = torch.randn


class Int8(nn.Module):
    """A buffer, since a parameter must be floating point."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(x, self.weight)


def int8_product() -> Built:
    x = torch.randint(-8, 8, (24, 256), dtype=torch.int8)
    return Int8(torch.randint(-8, 8, (256, 160), dtype=torch.int8)), (x,)


def encoder() -> Built:
    layer = nn.TransformerEncoderLayer(256, 4, dim_feedforward=640, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=2), (randn(3, 60, 256),)


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 384), nn.ReLU(), nn.Linear(384, 128))


TWO_LAYERS_MACS = linear(5, 256, 384) + linear(5, 384, 128)


def quantized() -> Built:
    from torch.ao.quantization import quantize_dynamic

    model = quantize_dynamic(two_layers().eval(), {nn.Linear}, dtype=torch.qint8)
    return model, (randn(5, 256),)


def compiled() -> Built:
    torch._dynamo.reset()  # so that this call is a first call
    return torch.compile(two_layers()), (randn(5, 256),)


def group_norm() -> Built:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.Conv2d(32, 48, 3)
    )
    return model, (randn(2, 3, 20, 20),)


# Functions are looked up when they are called (a lambda, not F.linear itself), as in anyone's
# model: some tools count by replacing them.
ROWS: tuple[Row, ...] = (
    Row("ResNet-18", vision.resnet18_small, vision.resnet18_macs(1, 64)),
    Row("ResNet-50", vision.resnet50_small, vision.resnet50_macs(1, 64)),
    Row("ViT, nn.MultiheadAttention", vision.vit_module, vision.VIT_MACS),
    Row("ViT, SDPA", vision.vit_functional, vision.VIT_MACS),
    Row("GPT-2, sdpa", lambda: language.gpt2("sdpa"), language.GPT2_MACS, needs="transformers"),
    Row("GPT-2, eager", lambda: language.gpt2("eager"), language.GPT2_MACS, needs="transformers"),
    Row("Llama, GQA", language.llama, language.LLAMA_MACS, needs="transformers"),
    Row(
        "nn.MultiheadAttention",
        lambda: (SelfAttention(256, 4), (randn(3, 60, 256),)),
        linear(3 * 60, 256, 4 * 256) + attention(3, 60, 60, 256),
    ),
    Row(
        "TransformerEncoder",
        encoder,
        2
        * (linear(3 * 60, 256, 4 * 256) + attention(3, 60, 60, 256) + 2 * linear(3 * 60, 256, 640)),
    ),
    Row(
        "bare F.sdpa",
        lambda: (
            Apply(lambda q, k, v: F.scaled_dot_product_attention(q, k, v)),
            (randn(2, 3, 80, 64), randn(2, 3, 48, 64), randn(2, 3, 48, 64)),
        ),
        attention(2, 80, 48, 3 * 64),
    ),
    Row(
        "flex_attention",
        lambda: (
            Apply(lambda q, k, v: flex_attention(q, k, v)),
            (randn(2, 3, 128, 64), randn(2, 3, 128, 64), randn(2, 3, 128, 64)),
        ),
        attention(2, 128, 128, 3 * 64),
        backends=("real", "fake"),
        why_not_everywhere="torch refuses flex_attention on the meta device",
    ),
    Row(
        "LSTM, 2 layers",
        lambda: (nn.LSTM(160, 192, num_layers=2), (randn(7, 3, 160),)),
        7 * 3 * (linear(1, 160 + 192, 4 * 192) + linear(1, 192 + 192, 4 * 192)),
    ),
    Row(
        "GRU",
        lambda: (nn.GRU(160, 192), (randn(7, 3, 160),)),
        7 * 3 * linear(1, 160 + 192, 3 * 192),
    ),
    Row(
        "GroupNorm + conv",
        group_norm,
        convolution(2, 3, 32, (3, 3), (20, 20)) + convolution(2, 32, 48, (3, 3), (18, 18)),
    ),
    Row(
        "a @ b on a Parameter",
        lambda: (Apply(lambda x, w: x @ w, randn(256, 384)), (randn(2, 5, 256),)),
        linear(2 * 5, 256, 384),
    ),
    Row(
        "einsum",
        lambda: (
            Apply(lambda x, w: torch.einsum("bsd,hdk->bhsk", x, w), randn(4, 256, 64)),
            (randn(2, 5, 256),),
        ),
        linear(2 * 5, 256, 4 * 64),
    ),
    Row(
        "F.linear on a Parameter",
        lambda: (Apply(lambda x, w: F.linear(x, w), randn(384, 256)), (randn(2, 5, 256),)),
        linear(2 * 5, 256, 384),
    ),
    Row(
        "ConvTranspose2d, stride 2",
        lambda: (
            nn.ConvTranspose2d(32, 24, 4, stride=2, padding=1, bias=False),
            (randn(2, 32, 9, 9),),
        ),
        convolution(2, 32, 24, (4, 4), (9, 9)),
    ),
    Row(
        "depthwise conv",
        lambda: (nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False), (randn(2, 24, 9, 9),)),
        convolution(2, 24, 24, (3, 3), (9, 9), groups=24),
    ),
    Row(
        "embedding + tied head",
        lambda: (TiedHead(997, 256), (torch.randint(0, 997, (2, 5)),)),
        linear(2 * 5, 256, 997),
    ),
    Row(
        "MoE, routed by data",
        lambda: (MixtureOfExperts(256, 384, experts=4, top_k=2), (randn(15, 256),)),
        linear(15, 256, 4) + 15 * 2 * 2 * linear(1, 256, 384),
        backends=REAL_ONLY,
        why_not_everywhere="which rows an expert gets (nonzero) is in the data, not in the shapes",
    ),
    Row(
        "custom autograd.Function",
        lambda: (Apply(lambda x, w: Product.apply(x, w), randn(256, 384)), (randn(5, 256),)),
        linear(5, 256, 384),
    ),
    Row("torch._int_mm", int8_product, linear(24, 256, 160)),
    Row(
        "quantize_dynamic int8 linear",
        quantized,
        TWO_LAYERS_MACS,
        backends=REAL_ONLY,
        why_not_everywhere="a packed weight is an opaque object: it has no fake or meta form",
    ),
    Row(
        "torch.compile'd MLP",
        compiled,
        TWO_LAYERS_MACS,
        backends=REAL_ONLY,
        why_not_everywhere="compiling is for real tensors; uncompiled, it is any other MLP",
    ),
    Row(
        "checkpointed MLP",
        lambda: (CheckpointedMLP(256, 384, blocks=3), (randn(5, 256),)),
        3 * 2 * linear(5, 256, 384),
    ),
    Row(
        "one Linear called 4×",
        lambda: (FourTimes(256), (randn(5, 256),)),
        4 * linear(5, 256, 256),
    ),
)

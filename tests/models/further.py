"""Rows beyond the 27: operators that counters miss or get wrong, one at a time."""

from math import log2
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.row import Apply, Built, Row, attention, convolution, linear

randn = torch.randn


class CrossAttention(nn.Module):
    """Keys and values narrower and wider than the queries: three projections of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(24, 4, kdim=14, vdim=18, batch_first=True)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.inner(q, k, v)[0]


def sdpa(**options: Any) -> Apply:
    return Apply(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options))


def heads(length: int, count: int = 3) -> Tensor:
    return randn(2, count, length, 16)


def masked_sdpa() -> Built:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return Apply(attend), (heads(20), heads(12), heads(12), randn(20, 12))


def grouped_product() -> Built:
    """Rows 0–15 meet the first matrix, 16–47 the second: each row meets one."""
    offsets = torch.tensor([16, 48], dtype=torch.int32)
    weights = randn(2, 16, 32).bfloat16()
    model = Apply(lambda x, offs, w: torch._grouped_mm(x, w, offs=offs), weights)
    return model, (randn(48, 16).bfloat16(), offsets)


def nested() -> Built:
    inner = nn.Sequential(nn.Linear(24, 40), nn.Sequential(nn.ReLU(), nn.Linear(40, 12)))
    return nn.Sequential(inner, nn.Sequential(nn.Tanh()), nn.Linear(12, 6)), (randn(5, 24),)


def fft_flops(signals: int, points: int, real: bool = False) -> int:
    return round((2.5 if real else 5) * signals * points * log2(points))


PRODUCTS: tuple[Row, ...] = (
    Row("mv", lambda: (Apply(lambda x, w: w.mv(x), randn(30, 20)), (randn(20),)), 30 * 20),
    Row(
        "addmv",
        lambda: (
            Apply(lambda x, b, w: torch.addmv(b, w, x), randn(30), randn(30, 20)),
            (randn(20),),
        ),
        30 * 20,
    ),
    Row("outer", lambda: (Apply(lambda x, w: torch.outer(x, w), randn(30)), (randn(20),)), 0),
    Row("dot", lambda: (Apply(lambda x, w: torch.dot(x, w), randn(40)), (randn(40),)), 40),
    Row("vdot", lambda: (Apply(lambda x, w: torch.vdot(x, w), randn(40)), (randn(40),)), 40),
    Row(
        "baddbmm",
        lambda: (
            Apply(lambda x, b, w: torch.baddbmm(b, x, w), randn(3, 5, 7), randn(3, 6, 7)),
            (randn(3, 5, 6),),
        ),
        3 * linear(5, 6, 7),
    ),
    Row(
        "tensordot",
        lambda: (
            Apply(lambda x, w: torch.tensordot(x, w, dims=2), randn(4, 6, 7)),
            (randn(5, 4, 6),),
        ),
        linear(5, 4 * 6, 7),
    ),
    Row(
        "complex matmul",
        lambda: (
            Apply(lambda x, w: torch.matmul(x, w), randn(24, 40, dtype=torch.complex64)),
            (randn(5, 24, dtype=torch.complex64),),
        ),
        4 * linear(5, 24, 40),
    ),
    Row("torch._grouped_mm", grouped_product, linear(48, 16, 32)),
    Row(
        "bilinear",
        lambda: (nn.Bilinear(10, 12, 7), (randn(5, 10), randn(5, 12))),
        5 * 7 * 10 * 12,
    ),
    # One MAC for each pair and coordinate. Above 25 points torch switches to a matrix product, and
    # the two columns that this adds to fold the norms in are its own affair.
    Row(
        "cdist",
        lambda: (Apply(lambda x, y: torch.cdist(x, y)), (randn(2, 20, 7), randn(2, 24, 7))),
        2 * 20 * 24 * 7,
    ),
    Row(
        "cdist, by matmul",
        lambda: (Apply(lambda x, y: torch.cdist(x, y)), (randn(2, 30, 7), randn(2, 40, 7))),
        2 * 30 * 40 * 7,
    ),
    Row("Linear on a vector", lambda: (nn.Linear(24, 40), (randn(24),)), 24 * 40),
    Row("nested Sequential", nested, 5 * (24 * 40 + 40 * 12 + 12 * 6)),
    Row("EmbeddingBag", lambda: (nn.EmbeddingBag(50, 12), (torch.randint(0, 50, (4, 6)),)), 0),
)

CONVOLUTIONS: tuple[Row, ...] = (
    Row(
        "conv1d",
        lambda: (nn.Conv1d(6, 8, 5, stride=2), (randn(2, 6, 21),)),
        convolution(2, 6, 8, (5,), (9,)),
    ),
    Row(
        "conv3d",
        lambda: (nn.Conv3d(4, 6, (2, 3, 3), padding=(0, 1, 1)), (randn(2, 4, 5, 6, 7),)),
        convolution(2, 4, 6, (2, 3, 3), (4, 6, 7)),
    ),
    Row(
        "grouped conv, dilated, padded",
        lambda: (
            nn.Conv2d(8, 12, 3, stride=2, padding=2, dilation=2, groups=4),
            (randn(2, 8, 11, 13),),
        ),
        convolution(2, 8, 12, (3, 3), (6, 7), groups=4),
    ),
    Row(
        "grouped transposed conv",
        lambda: (nn.ConvTranspose2d(8, 12, 3, stride=3, groups=4), (randn(2, 8, 5, 6),)),
        convolution(2, 8, 12, (3, 3), (5, 6), groups=4),
    ),
    Row(
        "unfold + matmul",
        lambda: (
            Apply(lambda x, w: w @ F.unfold(x, 3), randn(5, 4 * 9)),
            (randn(2, 4, 8, 9),),
        ),
        convolution(2, 4, 5, (3, 3), (6, 7)),
    ),
)

RECURRENT: tuple[Row, ...] = (
    Row(
        "LSTM, 2 layers, bidirectional",
        lambda: (nn.LSTM(10, 12, 2, bidirectional=True, batch_first=True), (randn(3, 7, 10),)),
        7 * 3 * 2 * (linear(1, 10 + 12, 4 * 12) + linear(1, 2 * 12 + 12, 4 * 12)),
    ),
    Row(
        "LSTM, projected",
        lambda: (nn.LSTM(10, 12, proj_size=5), (randn(7, 3, 10),)),
        7 * 3 * (linear(1, 10 + 5, 4 * 12) + linear(1, 12, 5)),
    ),
    Row(
        "RNN, tanh",
        lambda: (nn.RNN(10, 12), (randn(7, 3, 10),)),
        7 * 3 * linear(1, 10 + 12, 12),
    ),
    Row(
        "LSTMCell",
        lambda: (nn.LSTMCell(10, 12), (randn(3, 10),)),
        3 * linear(1, 10 + 12, 4 * 12),
    ),
    Row(
        "GRUCell",
        lambda: (nn.GRUCell(10, 12), (randn(3, 10),)),
        3 * linear(1, 10 + 12, 3 * 12),
    ),
)

ATTENTION: tuple[Row, ...] = (
    Row("SDPA, mask", masked_sdpa, attention(2, 20, 12, 3 * 16)),
    Row(
        "SDPA, dropout",
        lambda: (sdpa(dropout_p=0.1), (heads(20), heads(12), heads(12))),
        attention(2, 20, 12, 3 * 16),
    ),
    Row(
        "SDPA, causal",
        lambda: (sdpa(is_causal=True), (heads(20), heads(20), heads(20))),
        attention(2, 20, 20, 3 * 16),
    ),
    Row(
        "SDPA, grouped queries",
        lambda: (sdpa(enable_gqa=True), (heads(20, 6), heads(12, 2), heads(12, 2))),
        attention(2, 20, 12, 6 * 16),
    ),
    Row(
        "TransformerDecoderLayer",
        lambda: (
            nn.TransformerDecoderLayer(24, 4, dim_feedforward=56, batch_first=True),
            (randn(3, 10, 24), randn(3, 7, 24)),
        ),
        linear(3 * 10, 24, 4 * 24)
        + attention(3, 10, 10, 24)
        + 2 * linear(3 * 10, 24, 24)  # of the cross attention: queries, way out
        + 2 * linear(3 * 7, 24, 24)  # keys, values
        + attention(3, 10, 7, 24)
        + 2 * linear(3 * 10, 24, 56),
    ),
    Row(
        "MultiheadAttention, own kdim and vdim",
        lambda: (CrossAttention(), (randn(3, 10, 24), randn(3, 7, 14), randn(3, 7, 18))),
        2 * linear(3 * 10, 24, 24)
        + linear(3 * 7, 14, 24)
        + linear(3 * 7, 18, 24)
        + attention(3, 10, 7, 24),
    ),
)

TRANSFORMS: tuple[Row, ...] = (
    Row(
        "rfft",
        lambda: (Apply(lambda x: torch.fft.rfft(x)), (randn(3, 64),)),
        0,
        fft_flops(3, 64, real=True),
    ),
    Row(
        "irfft",
        lambda: (Apply(lambda x: torch.fft.irfft(x)), (randn(3, 33, dtype=torch.complex64),)),
        0,
        fft_flops(3, 64, real=True),
    ),
    Row(
        "fft2",
        lambda: (Apply(lambda x: torch.fft.fft2(x)), (randn(3, 8, 16, dtype=torch.complex64),)),
        0,
        fft_flops(3, 8 * 16),
    ),
    # LAPACK's leading terms: a factorisation 2/3·n³, each right-hand side 2·n²; an inverse 2·n³.
    Row(
        "linalg.solve",
        lambda: (Apply(lambda x, y: torch.linalg.solve(x, y)), (randn(2, 6, 6), randn(2, 6, 4))),
        0,
        2 * (2 * 6**3 // 3 + 2 * 6**2 * 4),
    ),
    Row(
        "linalg.inv",
        lambda: (Apply(lambda x: torch.linalg.inv(x)), (randn(2, 6, 6),)),
        0,
        2 * 2 * 6**3,
    ),
)

ROWS = PRODUCTS + CONVOLUTIONS + RECURRENT + ATTENTION + TRANSFORMS

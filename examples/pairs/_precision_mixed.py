"""The model and the data that every side of the mixed precision pair shares."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from _device import DEVICE
from _transformer import Stack, loss_and_gradients
from torch import Tensor

WIDTH, HEADS, DEPTH, BATCH, TOKENS = (
    (1024, 16, 4, 8, 1024) if DEVICE == "cuda" else (128, 4, 2, 4, 128)
)


class Step:
    """Forward, inside `precision()`, and backward. The optimizer is left out: it works on float32
    weights on every side."""

    def __init__(
        self, precision: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        torch.manual_seed(0)
        self.model = Stack(WIDTH, HEADS, DEPTH).to(DEVICE)
        self.precision = precision

    def __call__(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, list[Tensor]]:
        with self.precision():
            loss = F.mse_loss(self.model(x), wanted)
        return loss_and_gradients(self.model, loss)


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=draw)
    return x.to(DEVICE), torch.randn(BATCH, TOKENS, WIDTH, generator=draw).to(DEVICE)

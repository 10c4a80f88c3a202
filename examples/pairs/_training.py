"""The model, the loss and the data that both sides of the checkpointing pair share."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from _device import DEVICE
from _transformer import Stack, loss_and_gradients
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, BATCH, TOKENS = (
    (1024, 16, 16, 8, 1024) if DEVICE == "cuda" else (128, 4, 6, 4, 128)
)

Run = Callable[[nn.Module, Tensor], Tensor]


class Step:
    """Forward and backward of the stack; `run` says how a block is called."""

    def __init__(self, run: Run) -> None:
        torch.manual_seed(0)
        self.model = Stack(WIDTH, HEADS, DEPTH).to(DEVICE)
        self.run = run

    def __call__(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, list[Tensor]]:
        for block in self.model.blocks:
            x = self.run(block, x)
        loss = F.mse_loss(self.model.norm(x), wanted)
        return loss_and_gradients(self.model, loss)


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=draw)
    return x.to(DEVICE), torch.randn(BATCH, TOKENS, WIDTH, generator=draw).to(DEVICE)

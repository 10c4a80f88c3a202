"""The model, the data and the step that every side of the autograd pair shares."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from _device import DEVICE
from torch import Tensor, nn

# Small operators, many of them: on a GPU a step is then limited by launching, not by arithmetic.
WIDTH, DEPTH, BATCH, CLASSES = (256, 16, 128, 64) if DEVICE == "cuda" else (256, 6, 512, 64)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


Loss = Callable[[Tensor, Tensor], Tensor]


def as_it_is(loss: Loss) -> Loss:
    return loss


class Step:
    """Forward, backward and update, always from the same weights: every call has the same answer.

    Putting the weights back is part of the call on every side. `made` may wrap forward and loss.
    """

    def __init__(self, made: Callable[[Loss], Loss] = as_it_is) -> None:
        torch.manual_seed(0)
        blocks = [Residual() for _ in range(DEPTH)]
        self.model = nn.Sequential(*blocks, nn.Linear(WIDTH, CLASSES)).to(DEVICE)
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.start = [p.detach().clone() for p in self.parameters]
        self.optimizer = torch.optim.SGD(self.parameters, lr=1.0, foreach=True)
        self.loss = made(self._loss)

    def _loss(self, x: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), classes)

    def __call__(self, x: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, all gradients and what the update added, the last two in one row each."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.start)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(x, classes)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            added = torch._foreach_sub(self.parameters, self.start)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        return loss.detach(), _in_a_row(gradients), _in_a_row(added)


def _in_a_row(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, WIDTH, generator=draw)
    return x.to(DEVICE), torch.randint(0, CLASSES, (BATCH,), generator=draw).to(DEVICE)

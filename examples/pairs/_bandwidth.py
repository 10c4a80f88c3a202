"""What both sides of the bandwidth pair do: the same sum over the same numbers, in some order."""

import torch
from _device import DEVICE
from torch import Tensor

# Far beyond any cache: 3 × 256 MB of values and 512 MB of order on a GPU, 3 × 16 and 32 on a CPU.
COUNT = 1 << (26 if DEVICE == "cuda" else 22)


class Visit:
    """a * b + a, each element read and written where `order` says. Any permutation gives the same
    result, and uses the same bytes."""

    def __init__(self, order: Tensor) -> None:
        self.order = order.to(DEVICE)

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        picked = a.index_select(0, self.order)
        values = torch.addcmul(picked, picked, b.index_select(0, self.order))
        return torch.empty_like(a).index_copy_(0, self.order, values)


def arrays() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(COUNT, generator=draw), torch.randn(COUNT, generator=draw)
    return a.to(DEVICE), b.to(DEVICE)

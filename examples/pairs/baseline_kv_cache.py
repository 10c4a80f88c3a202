"""KV cache: keys and values grow by torch.cat.

Every token copies all that came before it: the bytes moved grow with the square of the length.
"""

import torch
from _kv_cache import BATCH, LAYERS, TOKENS, Decode, tokens
from torch import Tensor

GOAL = "speed"
ITEMS = BATCH * TOKENS


class Growing:
    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, Tensor] | None] = [None] * LAYERS

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        before = self.kept[layer]
        if before is not None:
            k, v = torch.cat((before[0], k), dim=2), torch.cat((before[1], v), dim=2)
        self.kept[layer] = k, v
        return k, v


def workload() -> tuple[Decode, tuple[Tensor, ...]]:
    return Decode(Growing), tokens()

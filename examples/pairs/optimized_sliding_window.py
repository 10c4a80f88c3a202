"""FlexAttention with a block mask: blocks outside the window are not computed at all."""

from _attention import BATCH, TOKENS, WINDOW, tensors
from _flex import Flex
from torch import Tensor

ITEMS = BATCH * TOKENS


def in_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query >= key) & (query - key < WINDOW)


def workload() -> tuple[Flex, tuple[Tensor, ...]]:
    return Flex(in_window), tensors()

"""FlexAttention: a causal mask written as a function, compiled into a fused kernel.

Blocks that lie wholly in the future are skipped. SDPA knows this mask too, so do not expect more
than from SDPA; it is here because the source's text promises it.
"""

from _attention import BATCH, TOKENS, tensors
from _flex import Flex
from torch import Tensor

ITEMS = BATCH * TOKENS


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def workload() -> tuple[Flex, tuple[Tensor, ...]]:
    return Flex(causal), tensors()

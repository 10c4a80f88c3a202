"""FlexAttention, compiled, for a mask given as a function; SKIP where it cannot be had."""

import unittest
from collections.abc import Callable

import torch
from _attention import TOKENS
from _device import DEVICE
from torch import Tensor

try:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError as missing:
    raise unittest.SkipTest(f"needs FlexAttention (torch 2.6 or newer): {missing}") from missing


class Flex:
    """Uncompiled, flex_attention would write out all scores; so the first call compiles."""

    def __init__(self, mask: Callable[..., Tensor]) -> None:
        self.mask = create_block_mask(mask, None, None, TOKENS, TOKENS, device=DEVICE)
        self.attend = torch.compile(flex_attention)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.no_grad():  # on CPUs there is a forward only
            return self.attend(q, k, v, block_mask=self.mask)

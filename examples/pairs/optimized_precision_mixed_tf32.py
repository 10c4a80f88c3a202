"""TF32: float32 products on tensor cores with 10 bits of mantissa; every tensor stays float32.

The switch is the whole process's, so it is turned on for the call and back after it.
"""

import unittest
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from _device import DEVICE
from _precision_mixed import BATCH, TOKENS, Step, data
from torch import Tensor

ITEMS = BATCH * TOKENS

# TF32 keeps three bits more than bfloat16, whose worst gradient is off by 0.6 %: an eighth of that,
# and three times as much allowed.
TOLERANCE = 2.5e-3


@contextmanager
def tf32() -> Iterator[None]:
    products = torch.backends.cuda.matmul
    # torch 2.9 renamed the switch, and refuses the old name where the new one has been used.
    renamed = hasattr(products, "fp32_precision")
    name, on = ("fp32_precision", "tf32") if renamed else ("allow_tf32", True)
    before = getattr(products, name)
    setattr(products, name, on)
    try:
        yield
    finally:
        setattr(products, name, before)


class InTF32:
    def __init__(self) -> None:
        self.step = Step()

    def __call__(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, list[Tensor]]:
        with tf32():
            return self.step(x, wanted)


def workload() -> tuple[InTF32, tuple[Tensor, ...]]:
    if DEVICE != "cuda" or torch.cuda.get_device_capability() < (8, 0):
        raise unittest.SkipTest(
            "needs a GPU with TF32 tensor cores (compute capability 8.0 or newer)"
        )
    return InTF32(), data()

"""Bias and ReLU both in the product's epilogue (torch._addmm_activation, cuBLASLt on a GPU).

On a CPU the operator does the two one after the other; there it should be the same as F.linear with
ReLU in place.
"""

import unittest
from collections.abc import Callable

import torch
from _matmul_epilogue import ROWS, tensors
from torch import Tensor

ITEMS = ROWS


def fused(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch._addmm_activation(bias, x, weight.t())


def workload() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    if not hasattr(torch, "_addmm_activation"):  # private: it may go
        raise unittest.SkipTest("this torch has no torch._addmm_activation")
    return fused, tensors()

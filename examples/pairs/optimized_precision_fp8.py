"""fp8 (e4m3) with one scale a tensor: the weight converted once, the activations in every call.

Finding the activations' scale is eager, unfused, and inside the clock.
"""

import torch
from _precision_fp8 import ROWS, TOLERANCE, check, tensors, to_fp8
from torch import Tensor

__all__ = ["ITEMS", "TOLERANCE", "check", "workload"]
ITEMS = ROWS


class Fp8Linear:
    def __init__(self, weight: Tensor) -> None:
        weight8, scale = to_fp8(weight, by_row=False)
        self.weight, self.scale = weight8.t(), scale.t()

    def __call__(self, x: Tensor) -> Tensor:
        x8, scale = to_fp8(x, by_row=False)
        return torch._scaled_mm(
            x8, self.weight, scale_a=scale, scale_b=self.scale, out_dtype=torch.bfloat16
        )


def workload() -> tuple[Fp8Linear, tuple[Tensor, ...]]:
    x, weight = tensors()
    return Fp8Linear(weight), (x,)

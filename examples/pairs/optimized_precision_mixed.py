"""bf16 autocast: matrix products and attention in bfloat16, weights, norms and loss in float32."""

import unittest
from functools import partial

import torch
from _device import DEVICE, bf16_is_native
from _precision_mixed import BATCH, TOKENS, Step, data
from _rounding import objection
from torch import Tensor

ITEMS = BATCH * TOKENS

# The worst of 98 gradients is off by 0.64 % (8 blocks, width 512), and its scale by 0.07 %.
TOLERANCE = 2e-2
SCALE = 2.5e-3


def check(
    baseline_output: tuple[Tensor, list[Tensor]], candidate_output: tuple[Tensor, list[Tensor]]
) -> str | None:
    """The loss and every single gradient."""
    (loss, gradients), (its_loss, its_gradients) = baseline_output, candidate_output
    pairs = zip([loss, *gradients], [its_loss, *its_gradients], strict=True)
    for number, (expected, found) in enumerate(pairs):
        words = objection(expected, found, error=TOLERANCE, scale=SCALE)
        if words:
            return f"gradient {number}: {words}" if number else f"the loss: {words}"
    return None


def workload() -> tuple[Step, tuple[Tensor, ...]]:
    if not bf16_is_native():
        raise unittest.SkipTest("needs bf16 instructions: here bfloat16 is emulated, and slower")
    return Step(partial(torch.autocast, DEVICE, torch.bfloat16)), data()

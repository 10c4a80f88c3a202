"""The tensors of the fp8 pair, how a tensor is brought to fp8, and what counts as equal."""

import unittest

import torch
from _device import DEVICE, fp8_is_native
from _rounding import error_of, objection
from torch import Tensor

ROWS, INNER, OUTER = 2048, 8192, 8192

# Rounding to e4m3 (3 bits of mantissa) moves a product of normally distributed numbers by 3.8 %
# (4096 terms a sum; with a scale a row or a tensor alike), its scale by 0.16 % and its worst row by
# 4.3 %. Over millions of results these hardly vary, so they need no more room than this.
TOLERANCE, SCALE, WORST_ROW = 4.5e-2, 5e-3, 6e-2


def tensors() -> tuple[Tensor, Tensor]:
    """Activations and a weight in nn.Linear's layout, both bfloat16."""
    if not fp8_is_native():
        raise unittest.SkipTest(
            "needs a GPU with fp8 tensor cores (compute capability 8.9 or newer)"
        )
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, INNER, generator=draw)
    weight = torch.randn(OUTER, INNER, generator=draw) / INNER**0.5
    return x.to(DEVICE, torch.bfloat16), weight.to(DEVICE, torch.bfloat16)


def to_fp8(t: Tensor, *, by_row: bool) -> tuple[Tensor, Tensor]:
    """The numbers in e4m3, and what they must be multiplied by to be themselves again."""
    largest = t.abs().amax(dim=1, keepdim=True) if by_row else t.abs().amax()
    scale = largest.float() / torch.finfo(torch.float8_e4m3fn).max
    return (t / scale).to(torch.float8_e4m3fn), scale


def check(baseline_output: Tensor, candidate_output: Tensor) -> str | None:
    """The error as a whole, the scale, and no single row spoilt."""
    words = objection(baseline_output, candidate_output, error=TOLERANCE, scale=SCALE)
    if words:
        return words
    rows = zip(baseline_output.float(), candidate_output.float(), strict=True)
    worst = max(error_of(expected, found) for expected, found in rows)
    return None if worst <= WORST_ROW else f"a row is off by {worst:.1%}, {WORST_ROW:.0%} allowed"

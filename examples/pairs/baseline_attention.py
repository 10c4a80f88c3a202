"""Attention: causal, written out, with the whole matrix of scores in memory.

Scores, mask, softmax in float32 and product, as model code had it before fused attention. Forward
only.
"""

import torch
from _attention import BATCH, DTYPE, TOKENS, tensors
from _rounding import objection
from torch import Tensor

ITEMS = BATCH * TOKENS
# In bfloat16 two right answers lie 0.42 % apart on an H200 as a whole, single elements up to 9 %;
# an answer 1 % off, or 1 % too large, must not pass. Two in float32 lie 0.00005 % apart.
ERROR, SCALE = (6e-3, 2e-3) if DTYPE is torch.bfloat16 else (1e-5, 1e-5)


class WrittenOut:
    def __init__(self, like: Tensor) -> None:
        self.future = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=like.device).triu(1)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(self.future, float("-inf"))
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v


def check(baseline_output: Tensor, candidate_output: Tensor) -> str | None:
    """The error as a whole, and the scale."""
    return objection(baseline_output, candidate_output, error=ERROR, scale=SCALE)


def workload() -> tuple[WrittenOut, tuple[Tensor, ...]]:
    q, k, v = tensors()
    return WrittenOut(q), (q, k, v)

"""Activation checkpointing: each block keeps its input only and runs forward again in backward.

Costs time by design, up to a third (three forwards' worth of work become four). Nothing is random
here, so the results should be bit-identical.
"""

from _training import BATCH, TOKENS, Step, data
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

GOAL = "memory"
ITEMS = BATCH * TOKENS


def checkpointed(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)


def workload() -> tuple[Step, tuple[Tensor, ...]]:
    return Step(checkpointed), data()

"""Training: forward and backward of a transformer that keeps every activation."""

from _training import BATCH, TOKENS, Step, data
from torch import Tensor, nn

GOAL = "memory"
ITEMS = BATCH * TOKENS


def called(block: nn.Module, x: Tensor) -> Tensor:
    return block(x)


def workload() -> tuple[Step, tuple[Tensor, ...]]:
    return Step(called), data()

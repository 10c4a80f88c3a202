"""Memory: the loss over a large vocabulary, with all logits at once.

A language model's peak is often here: the logits of every token, their log-softmax kept for
backward, and their gradient.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from _memory_profiling import TOKENS, tensors
from torch import Tensor

GOAL = "memory"
ITEMS = TOKENS


def step(hidden: Tensor, head: Tensor, words: Tensor) -> tuple[Tensor, ...]:
    """The loss and its gradients by hidden state and head."""
    hidden, head = hidden.detach().requires_grad_(), head.detach().requires_grad_()
    loss = F.cross_entropy(hidden @ head.t(), words)
    return loss.detach(), *torch.autograd.grad(loss, (hidden, head))


def workload() -> tuple[Callable[..., tuple[Tensor, ...]], tuple[Tensor, ...]]:
    return step, tensors()

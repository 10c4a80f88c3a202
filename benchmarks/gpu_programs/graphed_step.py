"""One CUDA graph of a whole training step, for the hand-tuned twins."""

from collections.abc import Callable

import torch
from torch import Tensor

EAGER_STEPS = 11
"""Steps run without a graph first: they compile, pick cuDNN's algorithms and make the optimizer's
state, none of which may happen while a graph is captured."""


class GraphedStep:
    """Calls `step(*inputs)` eagerly at first, then captures it once and replays it.

    The inputs keep their shapes; what `step` returns is overwritten by the next call. Every call
    trains one step, the eager ones too.
    """

    def __init__(self, step: Callable[..., tuple[Tensor, ...]]) -> None:
        self.step = step
        self.calls = 0
        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        if self.calls <= EAGER_STEPS:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                outputs = self.step(*inputs)
            torch.cuda.current_stream().wait_stream(self.stream)
            return outputs
        if not self.inputs:
            self.inputs = tuple(given.clone() for given in inputs)
            with torch.cuda.graph(self.graph):
                self.outputs = self.step(*self.inputs)
        for kept, given in zip(self.inputs, inputs, strict=True):
            kept.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.outputs

"""The same step recorded once as a CUDA graph: the whole step is one launch.

The recording reads and writes its own memory, so a call copies its inputs in and its results out;
both copies are inside the clock. It replays on the caller's stream, where the clock can see it.
"""

import unittest

import torch
from _autograd_standard import BATCH, Step, data
from _device import DEVICE
from torch import Tensor

ITEMS = BATCH


class Recorded:
    def __init__(self, step: Step, x: Tensor, classes: Tensor) -> None:
        self.step = step  # its weights and gradients live at the addresses the graph knows
        self.inputs = (x.clone(), classes.clone())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries set up their workspaces before they are recorded
                step(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = step(*self.inputs)
        with torch.no_grad():  # setting up has trained a little: begin where the baseline begins
            torch._foreach_copy_(step.parameters, step.start)

    def __call__(self, x: Tensor, classes: Tensor) -> tuple[Tensor, ...]:
        for mine, given in zip(self.inputs, (x, classes), strict=True):
            mine.copy_(given)
        self.graph.replay()
        return tuple(result.clone() for result in self.outputs)


def workload() -> tuple[Recorded, tuple[Tensor, ...]]:
    if DEVICE != "cuda":
        raise unittest.SkipTest("needs a CUDA device: a CPU has no graphs to record")
    inputs = data()
    return Recorded(Step(), *inputs), inputs

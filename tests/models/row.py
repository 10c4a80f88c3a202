"""A row of the matrix: a model, and its multiply-accumulates derived by hand.

The truths are plain arithmetic on dimensions: nothing here knows any counter. The conventions:

- one MAC is one multiply whose product is added into a sum; FLOPs are 2 × MACs;
- attention is the full square, whether a kernel skips its masked half or not;
- biases, norms, activations, softmax, embeddings and outer products (nothing is summed) are 0 MACs;
- a complex MAC is four real ones (four multiplies, four additions);
- an FFT of n points is 5·n·log2(n) FLOPs, half that where one side is real, and no MACs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import nn

Backend = Literal["real", "fake", "meta"]
EVERYWHERE: tuple[Backend, ...] = ("real", "fake", "meta")
REAL_ONLY: tuple[Backend, ...] = ("real",)

Built = tuple[nn.Module, tuple[Any, ...]]


@dataclass(frozen=True)
class Row:
    name: str
    make: Callable[[], Built]
    truth_macs: int
    transform_flops: int = 0
    """Heavy work that is not MACs: FFTs, factorisations."""
    backends: tuple[Backend, ...] = EVERYWHERE
    why_not_everywhere: str = ""
    needs: str = ""
    """A package without which the row is skipped."""

    def __post_init__(self) -> None:
        if self.backends != EVERYWHERE and not self.why_not_everywhere:
            raise ValueError(f"{self.name}: say why it does not hold on every backend")

    @property
    def truth_flops(self) -> int:
        return 2 * self.truth_macs + self.transform_flops

    def build(self) -> Built:
        """The same weights and inputs each time, and the caller's random numbers left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.make()


class Apply(nn.Module):
    """A function as a module: called with the inputs, then with its own parameters."""

    def __init__(self, function: Callable[..., Any], *weights: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(w) for w in weights)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *self.weights)


def linear(rows: int, inputs: int, outputs: int) -> int:
    return rows * inputs * outputs


def attention(batch: int, queries: int, keys: int, width: int) -> int:
    """Scores and their sum over the values; `width` is all heads together."""
    return 2 * batch * queries * keys * width


def convolution(
    batch: int,
    inputs: int,
    outputs: int,
    kernel: tuple[int, ...],
    sites: tuple[int, ...],
    groups: int = 1,
) -> int:
    """`sites` are output pixels; of a transposed convolution, input pixels."""
    return batch * prod(sites) * outputs * (inputs // groups) * prod(kernel)

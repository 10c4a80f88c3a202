"""The models, the lengths and the two ways to compile that the regional compile pairs share."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from _device import DEVICE
from _transformer import Block, Stack
from torch import Tensor, nn

try:
    from torch._inductor.utils import fresh_cache
except ImportError:  # its name before torch 2.8
    from torch._inductor.utils import fresh_inductor_cache as fresh_cache

WIDTH, HEADS, BATCH, LENGTHS = (
    (1024, 16, 4, (256, 512, 1024, 1536)) if DEVICE == "cuda" else (128, 4, 4, (96, 128, 160))
)
TOKENS = BATCH * sum(LENGTHS)


class Thin(nn.Module):
    """A block that compiles to one kernel; the C++ compiler takes about a second for each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(x))


def stack(*, cold: bool) -> Stack:
    """Transformer blocks, but for compiling again and again on a CPU: there four of them take 23 s
    of processor time, four thin ones 8 s."""
    thin = cold and DEVICE == "cpu"
    depth = 12 if DEVICE == "cuda" and not cold else 4
    torch.manual_seed(0)
    return Stack(WIDTH, HEADS, depth, Thin if thin else Block).to(DEVICE).eval()


def sequences() -> tuple[Tensor, ...]:
    """One batch a length."""
    draw = torch.Generator().manual_seed(1)
    return tuple(torch.randn(BATCH, n, WIDTH, generator=draw).to(DEVICE) for n in LENGTHS)


# The length is left open from the start, as in the source's baseline: by default the second length
# would compile everything once more, on either side.


def whole(model: Stack) -> None:
    """One graph for all blocks."""
    model.compile(dynamic=True)


def by_block(model: Stack) -> None:
    """One graph for a block; the others find it compiled already."""
    for block in model.blocks:
        block.compile(dynamic=True)


class Warm:
    """Runs every length through the model; the first call compiles."""

    def __init__(self, compile: Callable[[Stack], None], model: Stack | None = None) -> None:
        self.model = model or stack(cold=False)
        compile(self.model)

    def __call__(self, *sequences: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [self.model(x) for x in sequences]


class Cold:
    """Forgets all that was compiled, here and on disk, then compiles and runs every length."""

    def __init__(self, compile: Callable[[Stack], None]) -> None:
        self.compile = compile

    def __call__(self, *sequences: Tensor) -> list[Tensor]:
        torch.compiler.reset()
        with fresh_cache():
            return Warm(self.compile, stack(cold=True))(*sequences)

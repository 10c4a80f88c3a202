"""The fastest square matrix product of each dtype, on random data.

Random and never zeros: a product of zeros toggles no transistors, draws less power and so runs at
higher clocks than any real one. A generator of our own leaves the program's random numbers alone.
"""

import itertools
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from msgspec import Struct

from ridgeline.machine.precision import float32_products
from ridgeline.machine.stopwatch import BLOCK_S, Call, Timer, best_seconds

# On an H200 bfloat16 peaks at 8192, but what is best differs by dtype and by device.
_GPU_SIZES = (2048, 4096, 8192, 12288, 16384)
_CPU_SIZES = (256, 512, 1024, 2048, 4096)
_MAX_SETS = 16

_ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


# A GPU at its power cap lowers its clocks within tens of milliseconds: an H200 gave 702 TFLOP/s in
# bfloat16 back to back at 700 W, and 784 by hand in runs of 14 ms. The ceiling is the short run
# after a rest; what is kept up is noted beside it.
_BURST_S, _REST_S = 0.015, 0.2
_KEPT_UP_S = 0.15
_FINALISTS = 2


class Fastest(Struct, frozen=True):
    size: int
    flop_per_s: float
    kept_up_flop_per_s: float | None = None
    """Back to back for longer, where that was measured."""

    @property
    def seconds(self) -> float:
        """One product."""
        return 2.0 * self.size**3 / self.flop_per_s


class Limits(Struct, frozen=True, kw_only=True):
    budget_s: float
    memory_bytes: int
    cache_bytes: int = 0


def fastest(
    device: torch.device,
    dtype: str,
    timer: Timer,
    limits: Limits,
    on_progress: Callable[[str], None],
) -> Fastest:
    """Tries growing sizes while they fit the time and the memory, then runs the best one longer.

    Raises RuntimeError (torch's own) where the device cannot do the dtype at all.
    """
    deadline = time.perf_counter() + limits.budget_s
    best: Fastest | None = None
    tried: list[Fastest] = []
    with _precision(dtype), torch.no_grad():
        for size in _GPU_SIZES if device.type == "cuda" else _CPU_SIZES:
            if best is not None and not _worth_trying(size, dtype, best, deadline, limits):
                break
            try:
                rate = _rate(device, dtype, size, timer, limits, blocks=2, budget_s=0.2)
            except torch.OutOfMemoryError:
                if best is None:
                    raise
                break
            on_progress(f"{dtype} product, {size} × {size}: {rate / 1e9:,.1f} GFLOP/s")
            tried.append(Fastest(size, rate))
            best = max(tried, key=lambda t: t.flop_per_s)
        assert best is not None
        left = deadline - time.perf_counter()
        if left < 3 * best.seconds:
            return best
        if device.type == "cuda":
            return _rested(device, dtype, tried, timer, limits, left)
        again = _rate(device, dtype, best.size, timer, limits, blocks=10, budget_s=left)
    return Fastest(best.size, max(best.flop_per_s, again))


def _rested(
    device: torch.device,
    dtype: str,
    tried: list[Fastest],
    timer: Timer,
    limits: Limits,
    budget_s: float,
) -> Fastest:
    """The sizes that came first, each from rest; then the winner back to back."""
    finalists = sorted(tried, key=lambda t: -t.flop_per_s)[:_FINALISTS]
    share = budget_s / (len(finalists) + 1)
    again = [
        Fastest(
            f.size,
            max(f.flop_per_s, _rate(
                device, dtype, f.size, timer, limits, blocks=8, budget_s=share, rest_s=_REST_S
            )),
        )
        for f in finalists
    ]  # fmt: skip
    best = max(again, key=lambda t: t.flop_per_s)
    kept_up = _rate(
        device, dtype, best.size, timer, limits, blocks=1, budget_s=share, block_s=_KEPT_UP_S
    )
    return Fastest(best.size, best.flop_per_s, kept_up)


def _worth_trying(size: int, dtype: str, best: Fastest, deadline: float, limits: Limits) -> bool:
    if _set_bytes(dtype, size) > limits.memory_bytes:
        return False
    # Two calls to warm up and two to time, and as much again for the best size at the end.
    seconds = 2.0 * size**3 / best.flop_per_s
    return time.perf_counter() + 6 * seconds < deadline


def _rate(
    device: torch.device,
    dtype: str,
    size: int,
    timer: Timer,
    limits: Limits,
    *,
    blocks: int,
    budget_s: float,
    rest_s: float = 0.0,
    block_s: float | None = None,
) -> float:
    call = _product(device, dtype, size, limits)
    if block_s is None:
        block_s = _BURST_S if device.type == "cuda" else BLOCK_S
    return (
        2.0
        * size**3
        / best_seconds(
            call, timer, budget_s=budget_s, blocks=blocks, rest_s=rest_s, block_s=block_s
        )
    )


def _product(device: torch.device, dtype: str, size: int, limits: Limits) -> Call:
    """A call that multiplies the next of several operand sets.

    On a GPU the sets together are twice the L2, so that operands come from memory as they would
    in a program; a CPU's ceiling is its arithmetic, and one set is kept.
    """
    sets = 1
    if device.type == "cuda":
        wanted = math.ceil(2 * limits.cache_bytes / _set_bytes(dtype, size))
        room = limits.memory_bytes // _set_bytes(dtype, size)
        sets = max(1, min(wanted, room, _MAX_SETS))
    generator = torch.Generator(device=device).manual_seed(0)
    ring = itertools.cycle([_operation(device, dtype, size, generator) for _ in range(sets)])
    return lambda: next(ring)()


def _operation(device: torch.device, dtype: str, size: int, generator: torch.Generator) -> Call:
    def normal(kind: torch.dtype) -> torch.Tensor:
        values = torch.randn(size, size, generator=generator, device=device, dtype=torch.float32)
        return values.to(kind)

    if dtype == "int8":

        def integers() -> torch.Tensor:
            return torch.randint(
                -128, 128, (size, size), generator=generator, device=device, dtype=torch.int8
            )

        # Column-major, which is the only layout the integer tensor cores take as it is.
        a, b = integers(), integers().t()
        return lambda: torch._int_mm(a, b)
    if dtype == "float8":
        return _float8(normal(_float8_type(device)), normal(_float8_type(device)).t())
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    a, b = normal(kind), normal(kind)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _float8(a: torch.Tensor, b: torch.Tensor) -> Call:
    one = torch.ones((), device=a.device, dtype=torch.float32)
    # Fast accumulation is what the datasheet's figure means, and what float8 training uses for
    # its forward pass.
    return lambda: torch._scaled_mm(
        a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _float8_type(device: torch.device) -> torch.dtype:
    if device.type == "cuda" and torch.version.hip is not None:
        architecture = str(torch.cuda.get_device_properties(device).gcnArchName)
        if architecture.startswith("gfx94"):  # MI300 has its own encoding, without negative zero
            return torch.float8_e4m3fnuz
    return torch.float8_e4m3fn


def _set_bytes(dtype: str, size: int) -> int:
    if dtype == "int8":
        return size * size * (1 + 1 + 4)
    if dtype == "float8":
        return size * size * (1 + 1 + 2)
    return 3 * size * size * _ITEM_BYTES[dtype]


def _precision(dtype: str) -> AbstractContextManager[None]:
    return float32_products(tf32=dtype == "tf32") if dtype in ("float32", "tf32") else nullcontext()

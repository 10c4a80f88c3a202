"""Microbenchmarks of a device: matrix products, memory bandwidth and launch cost.

Each figure is the best of several timed blocks after a warm-up. It is not the median, because a
ceiling is an upper bound: what slows a block down (another process, a low clock, a page fault) is
no property of the device. Blocks last at least 50 ms, so that the best is a sustained rate. Matrix
products on a GPU are the exception: a power cap lowers the clocks within tens of milliseconds, so
their blocks are shorter and follow a rest.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from msgspec import Struct

Call: TypeAlias = Callable[[], object]
Timer: TypeAlias = Callable[[Call, int], float]
"""A function of a call and a number of repeats. It returns the seconds that they take on the
device, from the first issue to the last completion."""

BLOCK_S = 0.05
_MAX_REPEATS = 100_000


def timer_for(device: torch.device, while_busy: Callable[[], None] | None = None) -> Timer:
    """Return a timer for a device. `while_busy` is called while the GPU works through a block: that
    is when throttling can be seen, and it costs the block no time."""
    if device.type == "cpu":
        return _cpu_block

    def block(call: Call, repeats: int) -> float:
        with torch.cuda.device(device):
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            for _ in range(repeats):
                call()
            end.record()
            if while_busy is not None:
                while_busy()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

    return block


def wall_timer_for(device: torch.device) -> Timer:
    """Return a timer by host time, from the first issue to the last completion. It measures the
    cost of launching."""

    def block(call: Call, repeats: int) -> float:
        _settle(device)
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        _settle(device)
        return time.perf_counter() - start

    return block


def best_seconds(
    call: Call,
    timer: Timer,
    *,
    budget_s: float,
    blocks: int = 3,
    block_s: float = BLOCK_S,
    rest_s: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Return the seconds that a call takes in the best of `blocks` blocks, or of as many as fit
    `budget_s`. If not even one fits, return the time of the second call. `rest_s` is the idle time
    before each block.

    The first call never counts: it loads kernels, chooses algorithms and touches pages.
    """
    deadline = clock() + budget_s
    timer(call, 1)
    estimate = max(timer(call, 1), 1e-9)
    if clock() + estimate > deadline:
        return estimate
    repeats = min(max(1, math.ceil(block_s / estimate)), _MAX_REPEATS)
    if repeats > 1:
        # An idle GPU needs tens of milliseconds to raise its clocks. It does so during this block,
        # whose estimate replaces that of a single, cold call.
        estimate = max(timer(call, repeats) / repeats, 1e-9)
        repeats = min(max(1, math.ceil(block_s / estimate)), _MAX_REPEATS)
    best = math.inf
    for done in range(blocks):
        if done and clock() + rest_s + repeats * best > deadline:
            break
        if rest_s:
            sleep(rest_s)
            timer(
                call, math.ceil(repeats / 4)
            )  # raises the clocks, which sink while the GPU is idle
        best = min(best, timer(call, repeats) / repeats)
    return best


def _cpu_block(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Make float32 matrix products run in TF32 on CUDA (`tf32`), or in full float32 everywhere."""
    cublas: Any = torch.backends.cuda.matmul
    if not _has_precision(cublas):
        was = cublas.allow_tf32
        cublas.allow_tf32 = tf32
        try:
            yield
        finally:
            cublas.allow_tf32 = was
        return
    # From torch 2.9 on, reading the old flag raises an error in a program that has set the new one,
    # so only the new one is used. oneDNN has it too: there, "medium" turns float32 into bfloat16.
    switches = [(cublas, "tf32" if tf32 else "ieee")]
    mkldnn: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if mkldnn is not None:
        switches.append((mkldnn, "ieee"))
    saved = [(switch, _setting(switch)) for switch, _ in switches]
    try:
        for switch, wanted in switches:
            switch.fp32_precision = wanted
        yield
    finally:
        for switch, setting in saved:
            switch.fp32_precision = setting


def _has_precision(switch: Any) -> bool:
    try:
        return isinstance(switch.fp32_precision, str)
    except (AttributeError, RuntimeError):
        return False


def _setting(switch: Any) -> str:
    """Return the value to write back later. It is "none" if the value is inherited from
    torch.backends, so that a later change there still has effect."""
    value = str(switch.fp32_precision)
    return "none" if value == str(torch.backends.fp32_precision) else value  # type: ignore[attr-defined, unused-ignore]


# On an H200, bfloat16 is fastest at 8192; the best size differs by dtype and by device.
_GPU_MATRIX_SIZES = (2048, 4096, 8192, 12288, 16384)
_CPU_MATRIX_SIZES = (256, 512, 1024, 2048, 4096)
_MAX_OPERAND_SETS = 16

_ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


# A GPU at its power cap lowers its clocks within tens of milliseconds: an H200 gave 702 TFLOP/s in
# bfloat16 back to back at 700 W, and 784 in runs of 14 ms. The ceiling is the rate of a short run
# after a rest; the sustained rate is noted beside it.
_BURST_S, _REST_S = 0.015, 0.2
_SUSTAINED_S = 0.15
_FINALIST_SIZES = 2


class BestProduct(Struct, frozen=True):
    """The fastest square matrix product of a dtype."""

    size: int
    flop_per_s: float
    sustained_flop_per_s: float | None = None
    """The rate back to back for longer; None if it was not measured."""

    @property
    def seconds(self) -> float:
        """Return the time of one product."""
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
) -> BestProduct:
    """Return the fastest matrix product of a dtype. Growing sizes are tried while they fit the time
    and the memory; then the best one runs longer.

    torch raises RuntimeError if the device cannot compute the dtype at all.
    """
    deadline = time.perf_counter() + limits.budget_s
    best: BestProduct | None = None
    tried: list[BestProduct] = []
    with _precision(dtype), torch.no_grad():
        for size in _GPU_MATRIX_SIZES if device.type == "cuda" else _CPU_MATRIX_SIZES:
            if best is not None and not _worth_trying(size, dtype, best, deadline, limits):
                break
            try:
                rate = _rate(device, dtype, size, timer, limits, blocks=2, budget_s=0.2)
            except torch.OutOfMemoryError:
                if best is None:
                    raise
                break
            on_progress(f"{dtype} product, {size} × {size}: {rate / 1e9:,.1f} GFLOP/s")
            tried.append(BestProduct(size, rate))
            best = max(tried, key=lambda t: t.flop_per_s)
        assert best is not None
        left = deadline - time.perf_counter()
        if left < 3 * best.seconds:
            return best
        if device.type == "cuda":
            return _rested(device, dtype, tried, timer, limits, left)
        again = _rate(device, dtype, best.size, timer, limits, blocks=10, budget_s=left)
    return BestProduct(best.size, max(best.flop_per_s, again))


def _rested(
    device: torch.device,
    dtype: str,
    tried: list[BestProduct],
    timer: Timer,
    limits: Limits,
    budget_s: float,
) -> BestProduct:
    """Measure the fastest sizes again, each after a rest, and then the best one back to back."""
    finalists = sorted(tried, key=lambda t: -t.flop_per_s)[:_FINALIST_SIZES]
    share = budget_s / (len(finalists) + 1)
    again = [
        BestProduct(
            f.size,
            max(f.flop_per_s, _rate(
                device, dtype, f.size, timer, limits, blocks=8, budget_s=share, rest_s=_REST_S
            )),
        )
        for f in finalists
    ]  # fmt: skip
    best = max(again, key=lambda t: t.flop_per_s)
    sustained = _rate(
        device, dtype, best.size, timer, limits, blocks=1, budget_s=share, block_s=_SUSTAINED_S
    )
    return BestProduct(best.size, best.flop_per_s, sustained)


def _worth_trying(
    size: int, dtype: str, best: BestProduct, deadline: float, limits: Limits
) -> bool:
    if _operand_bytes(dtype, size) > limits.memory_bytes:
        return False
    # Two calls warm up and two are timed; the best size at the end takes about as much again.
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
    """Return a call that multiplies the next of several sets of operands.

    On a GPU, all sets together are twice as large as the L2 cache, so that operands come from
    memory as in a program. On a CPU one set is used, because its ceiling is that of the arithmetic.
    """
    sets = 1
    if device.type == "cuda":
        wanted = math.ceil(2 * limits.cache_bytes / _operand_bytes(dtype, size))
        room = limits.memory_bytes // _operand_bytes(dtype, size)
        sets = max(1, min(wanted, room, _MAX_OPERAND_SETS))
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

        # The second operand is column-major, the only layout that integer tensor cores read
        # directly.
        a, b = integers(), integers().t()
        return lambda: torch._int_mm(a, b)
    if dtype == "float8":
        return _float8(normal(_float8_type(device)), normal(_float8_type(device)).t())
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    a, b = normal(kind), normal(kind)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _float8(a: torch.Tensor, b: torch.Tensor) -> Call:
    scale = torch.ones((), device=a.device, dtype=torch.float32)
    # The figure of the datasheet is for fast accumulation, which float8 training uses in forward.
    return lambda: torch._scaled_mm(
        a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _float8_type(device: torch.device) -> torch.dtype:
    if device.type == "cuda" and torch.version.hip is not None:
        architecture = str(torch.cuda.get_device_properties(device).gcnArchName)
        if architecture.startswith("gfx94"):  # MI300 has its own encoding, without negative zero
            return torch.float8_e4m3fnuz
    return torch.float8_e4m3fn


def _operand_bytes(dtype: str, size: int) -> int:
    if dtype == "int8":
        return size * size * (1 + 1 + 4)
    if dtype == "float8":
        return size * size * (1 + 1 + 2)
    return 3 * size * size * _ITEM_BYTES[dtype]


def _precision(dtype: str) -> AbstractContextManager[None]:
    return float32_products(tf32=dtype == "tf32") if dtype in ("float32", "tf32") else nullcontext()


_MIB = 1 << 20
# On fast memory, larger copies amortise their start. The largest copy that fits is not always the
# fastest, because of the reach of the TLB, so several sizes are tried.
_GPU_BUFFER_BYTES = (256 * _MIB, 1024 * _MIB, 4096 * _MIB)


def copy_rate(device: torch.device, timer: Timer, sizes: tuple[int, ...], budget_s: float) -> float:
    """Return the bytes read and written per second by the fastest copy."""
    return _fastest_rate(device, timer, sizes, budget_s, moved=2, calls=_copies)


def triad_rate(
    device: torch.device, timer: Timer, sizes: tuple[int, ...], budget_s: float
) -> float:
    """Return the bytes read and written per second by the fastest a = b + s·c."""
    return _fastest_rate(device, timer, sizes, budget_s, moved=3, calls=_triads)


def buffer_sizes(kind: str, cache_bytes: int, memory_bytes: int) -> tuple[int, ...]:
    """Return the sizes of buffer to try. Three buffers must fit in `memory_bytes`. Together they
    should be several times as large as the cache, or the speed of the cache would be measured."""
    max_bytes = memory_bytes // 3 // _MIB * _MIB
    wanted: tuple[int, ...]
    if kind == "cpu":
        wanted = (min(max(2 * cache_bytes, 64 * _MIB), 1024 * _MIB),)
    else:
        wanted = tuple(size for size in _GPU_BUFFER_BYTES if size >= 2 * cache_bytes)
    fitting = tuple(size for size in wanted if size <= max_bytes)
    return fitting or (max(max_bytes, _MIB),)


def _fastest_rate(
    device: torch.device,
    timer: Timer,
    sizes: tuple[int, ...],
    budget_s: float,
    *,
    moved: int,
    calls: Callable[[torch.device, torch.Tensor], list[Call]],
) -> float:
    generator = torch.Generator(device=device).manual_seed(0)
    rates = []
    with torch.no_grad():
        for size in sizes:
            source = torch.rand(size // 4, generator=generator, device=device)
            candidates = calls(device, source)
            each = budget_s / len(sizes) / len(candidates)
            seconds = min(best_seconds(c, timer, budget_s=each, blocks=8) for c in candidates)
            rates.append(moved * size / seconds)
    return max(rates)


def _copies(device: torch.device, source: torch.Tensor) -> list[Call]:
    target = torch.empty_like(source)
    copy: Call = lambda: target.copy_(source)  # noqa: E731
    if device.type == "cpu":
        return [copy]
    # copy_ is the memcpy of the driver. On some devices an elementwise kernel, which moves as many
    # bytes, is faster. A program can use either.
    return [copy, lambda: torch.neg(source, out=target)]


def _triads(device: torch.device, source: torch.Tensor) -> list[Call]:
    other, target = source.flip(0), torch.empty_like(source)
    return [lambda: torch.add(source, other, alpha=3.0, out=target)]


def launch_seconds(device: torch.device, budget_s: float) -> float:
    """Return the host seconds that launching one small operation costs."""
    value = torch.rand(1, generator=torch.Generator(device=device).manual_seed(0), device=device)
    with torch.no_grad():
        # An operation in place without arguments allocates nothing and parses nothing.
        return best_seconds(value.neg_, wall_timer_for(device), budget_s=budget_s, blocks=8)

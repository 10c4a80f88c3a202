"""How fast one call can go: the best of several timed blocks, after a warm-up.

The best and not the median, because a ceiling is an upper bound: what slows a block down (another
process, a clock not yet raised, a page fault) is not part of what the device can do. A block is
long enough (50 ms and more) that the best is a sustained rate and not a lucky burst; where a power
cap makes "sustained" a matter of how long, it is shorter and follows a rest (see matmul).
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
"""Seconds that `repeats` calls take on the device, issue and completion included."""

BLOCK_S = 0.05
_MAX_REPEATS = 100_000


def timer_for(device: torch.device, while_busy: Callable[[], None] | None = None) -> Timer:
    """A timer for a device; `while_busy` is called while the GPU works through a block, which is
    when throttling can be seen, and costs the block nothing."""
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
    """Host seconds from the first issue to the last completion: what launching costs."""

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
    """Seconds a call takes in the best of `blocks` blocks or as many as `budget_s` has room for;
    where it has room for none, the second call. `rest_s` is idle time before each block.

    The first call is never counted: it loads kernels, picks algorithms and touches pages.
    """
    deadline = clock() + budget_s
    timer(call, 1)
    estimate = max(timer(call, 1), 1e-9)
    if clock() + estimate > deadline:
        return estimate
    repeats = min(max(1, math.ceil(block_s / estimate)), _MAX_REPEATS)
    if repeats > 1:
        # An idle GPU needs tens of milliseconds to raise its clocks; this block pays for that,
        # and its estimate replaces the one from a single, cold call.
        estimate = max(timer(call, repeats) / repeats, 1e-9)
        repeats = min(max(1, math.ceil(block_s / estimate)), _MAX_REPEATS)
    best = math.inf
    for done in range(blocks):
        if done and clock() + rest_s + repeats * best > deadline:
            break
        if rest_s:
            sleep(rest_s)
            timer(call, math.ceil(repeats / 4))  # clocks sink while idle; this raises them again
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
    """Matrix products of float32 run in TF32 on CUDA, or in full float32 everywhere."""
    cublas: Any = torch.backends.cuda.matmul
    if not _has_precision(cublas):
        was = cublas.allow_tf32
        cublas.allow_tf32 = tf32
        try:
            yield
        finally:
            cublas.allow_tf32 = was
        return
    # From torch 2.9 on, reading the old flag raises in a program that set the new one, so only
    # the new one is touched. oneDNN has it too: there "medium" turns float32 into bfloat16.
    switches = [(cublas, "tf32" if tf32 else "ieee")]
    mkldnn: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if mkldnn is not None:
        switches.append((mkldnn, "ieee"))
    kept = [(switch, _setting(switch)) for switch, _ in switches]
    try:
        for switch, wanted in switches:
            switch.fp32_precision = wanted
        yield
    finally:
        for switch, setting in kept:
            switch.fp32_precision = setting


def _has_precision(switch: Any) -> bool:
    try:
        return isinstance(switch.fp32_precision, str)
    except (AttributeError, RuntimeError):
        return False


def _setting(switch: Any) -> str:
    """What to write back: "none" where the value is merely inherited from torch.backends, so
    that a later change there still reaches it."""
    value = str(switch.fp32_precision)
    return "none" if value == str(torch.backends.fp32_precision) else value  # type: ignore[attr-defined, unused-ignore]


# On an H200 bfloat16 peaks at 8192, but what is best differs by dtype and by device.
_GPU_MATRIX_SIZES = (2048, 4096, 8192, 12288, 16384)
_CPU_MATRIX_SIZES = (256, 512, 1024, 2048, 4096)
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
    if _operand_bytes(dtype, size) > limits.memory_bytes:
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
        wanted = math.ceil(2 * limits.cache_bytes / _operand_bytes(dtype, size))
        room = limits.memory_bytes // _operand_bytes(dtype, size)
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


def _operand_bytes(dtype: str, size: int) -> int:
    if dtype == "int8":
        return size * size * (1 + 1 + 4)
    if dtype == "float8":
        return size * size * (1 + 1 + 2)
    return 3 * size * size * _ITEM_BYTES[dtype]


def _precision(dtype: str) -> AbstractContextManager[None]:
    return float32_products(tf32=dtype == "tf32") if dtype in ("float32", "tf32") else nullcontext()


_MIB = 1 << 20
# Larger copies amortise their start on fast memory; the largest that fits the memory is not
# always the fastest (TLB reach), so several are tried.
_GPU_BUFFER_BYTES = (256 * _MIB, 1024 * _MIB, 4096 * _MIB)


def copy_rate(device: torch.device, timer: Timer, sizes: tuple[int, ...], budget_s: float) -> float:
    """Bytes read and written per second by the fastest copy."""
    return _fastest_rate(device, timer, sizes, budget_s, moved=2, calls=_copies)


def triad_rate(
    device: torch.device, timer: Timer, sizes: tuple[int, ...], budget_s: float
) -> float:
    """Bytes read and written per second by the fastest a = b + s·c."""
    return _fastest_rate(device, timer, sizes, budget_s, moved=3, calls=_triads)


def buffer_sizes(kind: str, cache_bytes: int, memory_bytes: int) -> tuple[int, ...]:
    """Sizes of one buffer, of which three must fit in `memory_bytes`; together they should be
    several times the cache, or it is the cache that is measured."""
    most = memory_bytes // 3 // _MIB * _MIB
    wanted: tuple[int, ...]
    if kind == "cpu":
        wanted = (min(max(2 * cache_bytes, 64 * _MIB), 1024 * _MIB),)
    else:
        wanted = tuple(size for size in _GPU_BUFFER_BYTES if size >= 2 * cache_bytes)
    fitting = tuple(size for size in wanted if size <= most)
    return fitting or (max(most, _MIB),)


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
    # copy_ is the driver's own memcpy; on some devices an elementwise kernel, which moves the same
    # bytes, is faster. Either is something a program can reach.
    return [copy, lambda: torch.neg(source, out=target)]


def _triads(device: torch.device, source: torch.Tensor) -> list[Call]:
    other, target = source.flip(0), torch.empty_like(source)
    return [lambda: torch.add(source, other, alpha=3.0, out=target)]


def launch_seconds(device: torch.device, budget_s: float) -> float:
    one = torch.rand(1, generator=torch.Generator(device=device).manual_seed(0), device=device)
    with torch.no_grad():
        # In place and without arguments: nothing to allocate, nothing to parse.
        return best_seconds(one.neg_, wall_timer_for(device), budget_s=budget_s, blocks=8)

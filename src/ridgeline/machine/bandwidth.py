"""Memory bandwidth: a copy (one read, one write) and a triad a = b + s·c (two reads, one write).

Bytes are those the program asks for. A CPU that fetches a line before it overwrites it moves more
(half as much again in a copy); that traffic is real, but no program can put it to use.
"""

from collections.abc import Callable

import torch

from ridgeline.machine.stopwatch import Call, Timer, best_seconds

_MIB = 1 << 20
# Larger copies amortise their start on fast memory; the largest that fits the memory is not
# always the fastest (TLB reach), so several are tried.
_GPU_SIZES = (256 * _MIB, 1024 * _MIB, 4096 * _MIB)


def copy_rate(device: torch.device, timer: Timer, sizes: tuple[int, ...], budget_s: float) -> float:
    """Bytes read and written per second by the fastest copy."""
    return _best(device, timer, sizes, budget_s, moved=2, calls=_copies)


def triad_rate(
    device: torch.device, timer: Timer, sizes: tuple[int, ...], budget_s: float
) -> float:
    """Bytes read and written per second by the fastest a = b + s·c."""
    return _best(device, timer, sizes, budget_s, moved=3, calls=_triads)


def buffer_sizes(kind: str, cache_bytes: int, memory_bytes: int) -> tuple[int, ...]:
    """Sizes of one buffer, of which three must fit in `memory_bytes`; together they should be
    several times the cache, or it is the cache that is measured."""
    most = memory_bytes // 3 // _MIB * _MIB
    wanted: tuple[int, ...]
    if kind == "cpu":
        wanted = (min(max(2 * cache_bytes, 64 * _MIB), 1024 * _MIB),)
    else:
        wanted = tuple(size for size in _GPU_SIZES if size >= 2 * cache_bytes)
    fitting = tuple(size for size in wanted if size <= most)
    return fitting or (max(most, _MIB),)


def _best(
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

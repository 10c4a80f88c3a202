"""How fast one call can go: the best of several timed blocks, after a warm-up.

The best and not the median, because a ceiling is an upper bound: what slows a block down (another
process, a clock not yet raised, a page fault) is not part of what the device can do. A block is
long enough (50 ms and more) that the best is a sustained rate and not a lucky burst; where a power
cap makes "sustained" a matter of how long, it is shorter and follows a rest (see matmul).
"""

import math
import time
from collections.abc import Callable
from typing import TypeAlias

import torch

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

"""The peak of memory over one step, as torch's allocator sees it.

On a GPU, the caching allocator records the peak. On a CPU it does not, and the size of the process
says nothing because freed pages stay mapped. So the profiler's allocation events are summed in the
order of time. Neither includes what libraries allocate by themselves (scratch memory of oneDNN and
MKL, cuDNN handles), nor allocations by threads that the step starts.
"""

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.cost import MeasuredPeak

if TYPE_CHECKING:
    import torch

Mode = Literal["inference", "training"]

_MIB = 1 << 20
_STEP_LABEL = "ridgeline: step"


def measure_peak(
    step: Callable[[], object],
    device: str,
    static_bytes: int,
    mode: str,
    *,
    prepare: Callable[[], object] | None = None,
) -> MeasuredPeak:
    """Run `step` once and return the highest number of bytes that were allocated at one time.

    `static_bytes` is what was allocated before: parameters, buffers, inputs, optimizer state. On a
    CPU the allocator does not know it, so the peak is static_bytes plus what the step added. `mode`
    is "inference" or "training". An exception that `step` raises is passed on unchanged.

    `prepare` runs before the step, and is not part of the peak. On a CPU, the profiler sees that
    memory is freed only if it saw the allocation. If a step frees earlier memory (zero_grad with
    existing gradients), the peak is too high by that much, unless the memory was allocated in
    `prepare`, for example by running the step there.
    """
    if mode not in ("inference", "training"):
        raise UsageError(f"mode is {mode!r}: expected 'inference' or 'training'")
    prepare = prepare or _nothing
    kind = device.partition(":")[0]
    if kind == "cuda":
        return _on_cuda(prepare, step, device, static_bytes, cast(Mode, mode))
    if kind == "cpu":
        return _on_cpu(prepare, step, static_bytes, cast(Mode, mode))
    raise UsageError(f"cannot measure memory on {device!r}: expected 'cpu', 'cuda' or 'cuda:N'")


def _on_cuda(
    prepare: Callable[[], object],
    step: Callable[[], object],
    device: str,
    static_bytes: int,
    mode: Mode,
) -> MeasuredPeak:
    import torch

    if not torch.cuda.is_available():
        raise RidgelineError(f"there is no CUDA device here to measure {device!r} on")
    prepare()
    gc.collect()  # garbage of an earlier step would count towards the peak
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    other_bytes = torch.cuda.memory_allocated(device) - static_bytes
    step()
    torch.cuda.synchronize(device)
    method = "CUDA caching allocator, max_memory_allocated"
    # For example workspaces of cuBLAS, which take 32 MiB on Hopper.
    if other_bytes >= _MIB:
        method += (
            f"; {other_bytes / _MIB:.1f} MiB of it were allocated before, beside the static bytes"
        )
    return MeasuredPeak(
        mode=mode,
        peak_bytes=torch.cuda.max_memory_allocated(device),
        static_bytes=static_bytes,
        method=method,
        reserved_bytes=torch.cuda.max_memory_reserved(device),
    )


def _on_cpu(
    prepare: Callable[[], object], step: Callable[[], object], static_bytes: int, mode: Mode
) -> MeasuredPeak:
    with cpu_allocations(prepare) as deltas:
        step()
    return MeasuredPeak(
        mode=mode,
        peak_bytes=static_bytes + highest(deltas),
        static_bytes=static_bytes,
        method="profiler allocation events, summed in order of time, above the static bytes",
    )


@contextmanager
def cpu_allocations(prepare: Callable[[], object] | None = None) -> Iterator[list[int]]:
    """Yield a list that is filled when the block is over. It then holds the bytes that torch's CPU
    allocator handed out (+) and took back (-) in the block, in order of time. `prepare` runs before
    and is not counted.

    Raise RidgelineError if another profiler is already running."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    if torch._C._autograd._profiler_enabled():
        raise RidgelineError(
            "a profiler is already running, and torch allows one at a time",
            hint="measure memory outside the profiler's block",
        )
    deltas: list[int] = []
    gc.collect()
    # Without acc_events, torch 2.11 warns that a second cycle would clear the first.
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
    with _kineto_silenced():
        profiler.start()
    try:
        (prepare or _nothing)()
        gc.collect()
        with record_function(_STEP_LABEL):
            yield deltas
    finally:
        with _kineto_silenced():
            profiler.stop()
    deltas += _deltas(profiler)


def allocations_of_calls(calls: Iterable[Callable[[], object]]) -> list[list[int]]:
    """Return, for each call, the bytes that torch's CPU allocator handed out (+) and took back (-)
    while the call ran. What a call returns still counts as held when it ends."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    if torch._C._autograd._profiler_enabled():
        raise RidgelineError("a profiler is already running, and torch allows one at a time")
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
    with _kineto_silenced():
        profiler.start()
    try:
        for call in calls:
            with record_function(_STEP_LABEL):
                held = call()
            del held
    finally:
        with _kineto_silenced():
            profiler.stop()
    results = profiler.profiler.kineto_results if profiler.profiler else None
    events: list[Any] = list(results.events()) if results is not None else []
    windows = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == _STEP_LABEL
    )
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if _is_cpu_memory(e))
    return [[n for at, n in changes if begun <= at <= ended] for begun, ended in windows]


def _is_cpu_memory(event: Any) -> bool:
    return bool(event.name() == "[memory]" and event.device_type().name == "CPU")


def highest(deltas: Iterable[int]) -> int:
    """Return the highest value of a running sum that begins at zero."""
    level = peak = 0
    for delta in deltas:
        level += delta
        peak = max(peak, level)
    return peak


def _deltas(profiler: "torch.profiler.profile") -> list[int]:
    """Return the bytes allocated (+) and freed (-) since the step began, in order of time. They are
    read from kineto's own events: in those of `events()`, an allocation belongs to its operator and
    has no time."""
    results = profiler.profiler.kineto_results if profiler.profiler else None
    if results is None:
        raise RidgelineError("the profiler returned no events, so the peak is not known")
    events: list[Any] = list(results.events())  # torch's stub lacks nbytes()
    begun = min(event.start_ns() for event in events if event.name() == _STEP_LABEL)
    changes = [
        (event.start_ns(), event.nbytes())
        for event in events
        if _is_cpu_memory(event) and event.start_ns() >= begun
    ]
    changes.sort(key=lambda change: change[0])
    return [delta for _, delta in changes]


@contextmanager
def _kineto_silenced() -> Iterator[None]:
    """Keep two "USDT:" lines of torch 2.13 out of the terminal. C++ code writes them at every start
    and stop, whatever KINETO_LOG_LEVEL is. Everything else that is written meanwhile is passed on.
    """
    try:
        sys.stderr.flush()
        stderr = os.dup(2)
    except (OSError, ValueError, AttributeError):  # there is no stderr
        yield
        return
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            caught.seek(0)
            rest = b"".join(line for line in caught if not line.startswith(b"USDT:"))
            if rest:
                os.write(2, rest)


def _nothing() -> None:
    pass

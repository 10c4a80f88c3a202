"""Memory in use at the end of a step, the history of allocations, and shortages of memory.

Memory in use is what the allocators themselves count.

The C library knows to the byte what the program has asked for and not given back. The resident
size, which the watcher sees from outside, follows that number only roughly and late. One reading
takes 1 to 5 microseconds on a host. Where there is no such counter (another C library, or another
allocator loaded in front of it) the host's bytes are 0, which means not known.
"""

import ctypes
import os
import pickle
import re
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from ridgeline.harness.capture.inventory import tensors_of
from ridgeline.harness.capture.places import is_user_file, user_line, user_line_of_thread
from ridgeline.harness.usercode.load import is_out_of_memory
from ridgeline.machine.processor import memory_bytes
from ridgeline.records.memory import MemoryKind
from ridgeline.records.run import OutOfMemory, StepMemory
from ridgeline.records.step_memory import Stock

PAUSE_FACTOR = 500
"""A reading is followed by a pause of this many times its own cost: at most 0.2 % of the time."""
MIN_PLAUSIBLE_BYTES = 8 * 2**20
"""Importing torch alone takes 80 MiB from malloc. Less means that another allocator is in use."""


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library (2.33 and later)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def malloc_bytes() -> Callable[[], int] | None:
    """Return a function that returns how many bytes malloc has handed out; None if the C library
    does not tell."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):
        return None
    ask.restype = _MallocInfo

    def in_use() -> int:
        info = ask()
        return int(info.uordblks) + int(info.hblkhd)

    return in_use if in_use() >= MIN_PLAUSIBLE_BYTES else None


class MemoryReadings:
    """Reads the memory in use, with a pause after each reading that keeps the cost small."""

    def __init__(self, torch: Any, clock: Callable[[], int]) -> None:
        self._torch = torch
        self._clock = clock
        self._host = malloc_bytes()
        self._due_ns = 0
        self._cost_ns: dict[int | None, int] = {}
        """The lowest cost of a reading so far, by device. A reading that was interrupted costs
        more, which says nothing about the next one."""

    def read_if_due(self, cuda: int | None, now_ns: int) -> StepMemory | None:
        """Return the memory in use on the host and on the CUDA device `cuda`, if there is one.
        Return None if the pause after the last reading is not over, or if nothing can be read."""
        if now_ns < self._due_ns:
            return None
        try:
            reading = self.read(cuda)
        except Exception:  # an allocator of the program's own that counts nothing
            self._due_ns = sys.maxsize
            return None
        done = self._clock()
        cost = min(done - now_ns, self._cost_ns.get(cuda, done - now_ns))
        self._cost_ns[cuda] = cost
        self._due_ns = done + PAUSE_FACTOR * cost
        return reading

    def last(self, cuda: int | None) -> StepMemory | None:
        """Return a last reading, whatever it costs: the program is over."""
        self._due_ns = min(self._due_ns, self._clock())
        return self.read_if_due(cuda, self._clock())

    def read(self, cuda: int | None) -> StepMemory | None:
        host = self._host() if self._host is not None else 0
        if cuda is None or not self._torch.cuda.is_initialized():
            return StepMemory(host_bytes=host) if host else None
        # torch.cuda.memory_stats sorts and flattens this, which takes ten times as long.
        counters = self._torch.cuda.memory_stats_as_nested_dict(cuda)
        allocated = counters.get("allocated_bytes", {}).get("all", {})
        reserved = counters.get("reserved_bytes", {}).get("all", {})
        return StepMemory(
            allocated_bytes=int(allocated.get("current", 0)),
            peak_bytes=int(allocated.get("peak", 0)),
            reserved_bytes=int(reserved.get("peak", 0)),
            retries=int(counters.get("num_alloc_retries", 0)),
            host_bytes=host,
        )


MAX_STOCK_TENSORS = 20_000
"""Tensors of models and optimizers that are looked at, at 1 to 2 µs each."""


def stock(torch: Any, modules: Iterable[Any], optimizers: Iterable[Any]) -> tuple[Stock, ...]:
    """Return what models and optimizers hold: parameters, buffers, gradients, the optimizers'
    state. A storage that several tensors share counts once, as the first of these kinds."""
    found: dict[tuple[str, MemoryKind], dict[int, int]] = {}
    seen: set[int] = set()
    with torch._C.DisableTorchFunction():
        for kind, tensor in islice(_held(modules, optimizers), MAX_STOCK_TENSORS):
            if not _is_plain_tensor(torch, tensor):
                continue
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if address and address not in seen:
                seen.add(address)
                found.setdefault((str(tensor.device), kind), {})[address] = storage.nbytes()
    return tuple(
        Stock(
            device=device, kind=kind, bytes=sum(blocks.values()), tensors=len(blocks),
            addresses=tuple(blocks),
        )
        for (device, kind), blocks in found.items()
    )  # fmt: skip


def _held(modules: Iterable[Any], optimizers: Iterable[Any]) -> Iterator[tuple[MemoryKind, Any]]:
    parameters: list[Any] = []
    for module in modules:
        parameters += tensors_of(module, "_parameters")
        for buffer in tensors_of(module, "_buffers"):
            yield MemoryKind.BUFFER, buffer
    for optimizer in optimizers:
        parameters += [p for group in optimizer.param_groups for p in group["params"]]
        for state in list(optimizer.state.values()):
            for value in list(state.values()) if isinstance(state, dict) else ():
                yield MemoryKind.OPTIMIZER_STATE, value
    for parameter in parameters:
        yield MemoryKind.PARAMETER, parameter
        yield MemoryKind.GRADIENT, parameter.grad


def _is_plain_tensor(torch: Any, value: Any) -> bool:
    """Return whether `value` is a dense tensor of torch's own class, whose storage has an
    address."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and value.device.type in ("cpu", "cuda")
    )


MAX_HISTORY_ENTRIES = 100_000
MAX_ALIVE_LINES = 20
MAX_SNAPSHOTS = 2

Where = Callable[[], tuple[int, str, int | None]]
"""Returns the step and the phase that the program is in, and the thread that trains. The thread is
needed because a backward runs out of memory in a thread of autograd, whose stack has no line of the
user's."""


class MemoryHistory:
    """Records the allocations on CUDA devices, and describes them if a device runs out of
    memory."""

    def __init__(
        self,
        torch: Any,
        target: Path,
        where: Where,
        report: Callable[[OutOfMemory], None],
        fault: Callable[[str, BaseException], None],
    ) -> None:
        self._torch = torch
        self._target = target
        self._where = where
        self._report = report
        self._fault = fault
        self._recording = False
        self._snapshots = 0

    def watch(self) -> None:
        """Begin when CUDA starts, or at once if it has started already. This does not start
        CUDA."""
        if self._torch.version.cuda:
            self._torch.cuda._lazy_call(self._begin)

    def _begin(self) -> None:
        try:
            self._torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
            enabled = getattr(self._torch._C, "_cuda_isHistoryEnabled", None)
            if enabled is None or not enabled():  # else the program records a history itself
                self._torch.cuda.memory._record_memory_history(
                    "all", context="alloc", stacks="python", max_entries=MAX_HISTORY_ENTRIES
                )
                self._recording = True
        except Exception as error:  # an allocator without history
            self._recording = False
            self._fault("memory history", error)

    def stop(self) -> Path | None:
        """End the recording and return the snapshot's file; None if there was no recording."""
        if not self._recording:
            return None
        self._recording = False
        try:
            return self._write(self._target)
        finally:
            self._torch.cuda.memory._record_memory_history(None)

    def _write(self, target: Path) -> Path:
        partial = target.parent / f".{target.name}.part"
        try:
            with open(partial, "wb") as file:
                pickle.dump(self._torch.cuda.memory._snapshot(), file)
            os.chmod(partial, 0o600)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        return target

    def _out_of_memory(self, device: int, asked: int, held: int, free: int) -> None:
        if self._snapshots >= MAX_SNAPSHOTS:
            return
        self._snapshots += 1
        try:
            self._report(self._describe(device, asked, free))
        except Exception as error:  # the program must see its own out-of-memory error only
            self._fault("out of memory", error)

    def _describe(self, device: int, asked: int, free: int) -> OutOfMemory:
        step, phase, thread = self._where()
        memory = self._torch.cuda.memory
        snapshot = memory._snapshot()
        target = self._target.with_name(self._target.name.replace("memory-", "oom-"))
        try:
            with open(target, "wb") as file:
                os.chmod(target, 0o600)
                pickle.dump(snapshot, file)
        except OSError:
            target.unlink(missing_ok=True)
        return OutOfMemory(
            asked_bytes=asked,
            free_bytes=free,
            total_bytes=int(self._torch.cuda.get_device_properties(device).total_memory),
            allocated_bytes=int(self._torch.cuda.memory_allocated(device)),
            reserved_bytes=int(self._torch.cuda.memory_reserved(device)),
            step=step,
            phase=phase,
            place=user_line() or user_line_of_thread(thread),
            alive=alive(snapshot),
            snapshot=target.name if target.exists() else "",
        )


def alive(snapshot: Any) -> tuple[tuple[str, int, int], ...]:
    """Return the live allocations by the line that made them, as (file:line, bytes, blocks),
    largest first."""
    sums: dict[str, tuple[int, int]] = {}
    for segment in snapshot.get("segments", ()):
        for block in segment.get("blocks", ()):
            if block.get("state") != "active_allocated":
                continue
            place = _allocated_at(block.get("frames") or ())
            size, blocks = sums.get(place, (0, 0))
            sums[place] = (size + int(block.get("requested_size") or block["size"]), blocks + 1)
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return tuple((place, size, blocks) for place, (size, blocks) in ordered[:MAX_ALIVE_LINES])


def _allocated_at(frames: Any) -> str:
    for frame in frames:  # innermost first
        file = str(frame.get("filename", ""))
        if file and not file.startswith("??") and is_user_file(file):
            return f"{file}:{frame.get('line', 0)}"
    return ""


_REQUESTED_BYTES = re.compile(r"tried to allocate (\d+) bytes")


def host_memory_shortage(error: Any, step: int, phase: str) -> OutOfMemory | None:
    """Return a description of the shortage that `error` reports. Return None if it reports none, or
    one of a GPU."""
    import torch

    if not isinstance(error, BaseException) or isinstance(error, torch.OutOfMemoryError):
        return None
    if not is_out_of_memory(error):
        return None
    request = _REQUESTED_BYTES.search(str(error))
    used, limit = _used_and_limit()
    return OutOfMemory(
        asked_bytes=int(request.group(1)) if request else 0,
        free_bytes=max(limit - used, 0),
        total_bytes=limit,
        on="host",
        allocated_bytes=used,
        step=step,
        phase=_phase_raised_in(error.__traceback__) or phase,
        place=_raised_at(error.__traceback__),
    )


def _used_and_limit() -> tuple[int, int]:
    """Return the bytes in use and the tightest limit. All mapped memory counts against a limit of
    the address space, and resident memory against any other limit."""
    mapped, resident = _sizes()
    room = memory_bytes()
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY and (not room or addresses < room):
        return mapped, addresses
    return resident, room


def _sizes() -> tuple[int, int]:
    """Return the mapped and the resident bytes of this process; zeros if they are not known."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        mapped, resident = file.read().split()[:2]
        return int(mapped) * resource.getpagesize(), int(resident) * resource.getpagesize()
    return 0, 0


_PHASE_FILES = (
    ("/torch/utils/data/", "input"), ("/torch/optim/", "optimizer"),
    ("/torch/autograd/", "backward"), ("/torch/nn/modules/module.py", "forward"),
)  # fmt: skip


def _phase_raised_in(trace: TracebackType | None) -> str:
    """Return the phase of the step in which an exception was raised, by the outermost function of
    torch on its way; "" if there is none. The step itself has been left by now."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        for part, phase in _PHASE_FILES:
            if part in file:
                return phase
        trace = trace.tb_next
    return ""


def _raised_at(trace: TracebackType | None) -> str:
    """Return file:line of the innermost frame in the user's own code, or ""."""
    place = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_user_file(file):
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place

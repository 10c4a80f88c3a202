"""Records everything but the steps: the trace, the memory history, and facts about the program.

Recordings start and stop when a window changes, at the end of a step. That takes time, so the step
it falls into is marked as "disturbed".
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ridgeline.harness.capture import places, stack_sampling
from ridgeline.harness.capture.held_tensors import live_at_failure
from ridgeline.harness.capture.memory_watch import MemoryHistory, Where, host_memory_shortage
from ridgeline.harness.capture.tracing import Tracing
from ridgeline.harness.usercode.load import is_out_of_memory
from ridgeline.records.run import (
    Capture,
    Compilation,
    DeviceSeen,
    Flags,
    NoTrace,
    OutOfMemory,
    Settings,
    Status,
    Step,
)
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.step_memory import Stock, TracedAllocations

FLUSH_INTERVAL_NS = 1_000_000_000
MAX_ROWS = 1_000_000
"""About 300 MB of lines. Only a run with `--full` can reach it."""


class Journal:
    """Writes the steps and the capture file of one rank."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.directory = RunDirectory(directory)
        self.rank = rank
        self._rows: list[Step] = []
        self._written = 0
        self._flushed_ns = time.perf_counter_ns()
        self.broken = ""
        """The reason why nothing can be written any more; "" if writing works."""

    def due(self, now_ns: int) -> bool:
        return now_ns - self._flushed_ns >= FLUSH_INTERVAL_NS

    def add(self, steps: list[Step]) -> None:
        room = MAX_ROWS - self._written - len(self._rows)
        self._rows.extend(steps[:room])

    @property
    def full(self) -> bool:
        return self._written + len(self._rows) >= MAX_ROWS

    def flush(self, now_ns: int) -> None:
        self._flushed_ns = now_ns
        if not self._rows:
            return
        encode = msgspec.json.Encoder().encode
        data = b"".join(encode(row) + b"\n" for row in self._rows)
        name = self.directory.steps_file(self.rank).name
        if self._try_write(lambda: self.directory.append(name, data)):
            self._written += len(self._rows)
        self._rows.clear()

    def again(self) -> None:
        """Delete all steps so far: they turned out not to be steps."""
        self._rows.clear()
        if self._written:
            name = self.directory.steps_file(self.rank).name
            self._try_write(lambda: self.directory.write_whole(name, b""))
            self._written = 0

    def capture(self, capture: Capture) -> bool:
        data = msgspec.json.encode(capture)
        name = self.directory.capture_file(self.rank).name
        return self._try_write(lambda: self.directory.write_whole(name, data), last=True)

    def allocations(self, found: TracedAllocations) -> None:
        data = msgspec.msgpack.encode(found)
        name = self.directory.allocations_file(self.rank).name
        self._try_write(lambda: self.directory.write_whole(name, data))

    def _try_write(self, write: Callable[[], object], last: bool = False) -> bool:
        if self.broken and not last:
            return False
        try:
            write()
        except OSError as error:
            self.broken = self.broken or f"could not be written: {error.strerror or error}"
            return False
        return True


def read_flags(torch: Any, autocast: tuple[str, ...], scaler: bool) -> Flags:
    backends = torch.backends
    cuda = torch.version.cuda or ""
    return Flags(
        torch=str(torch.__version__),
        cuda=cuda,
        cudnn=str(backends.cudnn.version() or "") if cuda else "",
        # Reading allow_tf32 raises if the program mixes torch's old and new settings for it.
        matmul_tf32=_or_none(lambda: bool(backends.cuda.matmul.allow_tf32)) if cuda else None,
        cudnn_tf32=_or_none(lambda: bool(backends.cudnn.allow_tf32)) if cuda else None,
        matmul_precision=_or_none(torch.get_float32_matmul_precision) or "",
        cudnn_benchmark=bool(backends.cudnn.benchmark) if cuda else None,
        cudnn_deterministic=bool(backends.cudnn.deterministic) if cuda else None,
        deterministic=bool(torch.are_deterministic_algorithms_enabled()),
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        allowed_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        autocast=autocast,
        gradient_scaler=scaler,
    )


def describe_device(torch: Any, index: int | None) -> DeviceSeen:
    """Describe the CUDA device with this index. For None, return the record of a CPU, which the
    watcher completes."""
    if index is None:
        return DeviceSeen()
    device = torch.cuda.get_device_properties(index)
    pci = ""
    if all(hasattr(device, name) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")):
        pci = f"{device.pci_domain_id:08x}:{device.pci_bus_id:02x}:{device.pci_device_id:02x}.0"
    architecture = getattr(device, "gcnArchName", "") or f"sm_{device.major}{device.minor}"
    return DeviceSeen(
        kind="cuda",
        index=index,
        name=str(device.name),
        memory_bytes=int(device.total_memory),
        uuid=str(getattr(device, "uuid", "")).removeprefix("GPU-"),
        pci=pci,
        architecture=architecture if torch.version.hip else f"sm_{device.major}{device.minor}",
        cores=int(device.multi_processor_count),
    )


def _or_none(read: Any) -> Any:
    try:
        return read()
    except RuntimeError:
        return None


MAX_COMPILATIONS = 64
MAX_REASON_CHARS = 400
MAX_CALLERS = 1024
_called_at: dict[str, str] = {}
"""The user's line that called the compiled function, by Dynamo's number of the compilation. There
is one such table for the process, as there is one of Dynamo's own records."""


class Compiling:
    """Measures the time that torch.compile spends compiling."""

    def __init__(self) -> None:
        self._watching = False
        self._began = 0
        self._depth = 0
        self.ns = 0
        """Nanoseconds spent compiling since the last `take`."""
        self.seen = False

    def watch(self) -> None:
        """Register callbacks for each compilation, once Dynamo has been imported."""
        if self._watching or "torch._dynamo.callback" not in sys.modules:
            return
        self._watching = True
        handler = sys.modules["torch._dynamo.callback"].callback_handler
        handler.register_start_callback(self._start)
        handler.register_end_callback(self._end)

    def leave(self) -> None:
        if not self._watching:
            return
        handler = sys.modules["torch._dynamo.callback"].callback_handler
        if self._start in handler.start_callbacks:
            handler.remove_start_callback(self._start)
        if self._end in handler.end_callbacks:
            handler.remove_end_callback(self._end)

    def take(self) -> int:
        spent, self.ns = self.ns, 0
        return spent

    def _start(self, *arguments: Any) -> None:
        self.seen = True
        self._depth += 1
        with contextlib.suppress(Exception):
            _remember_caller(str(getattr(arguments[0], "compile_id", "")))
        if self._depth == 1:
            self._began = time.perf_counter_ns()

    def _end(self, *arguments: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth == 0 and self._began:
            self.ns += time.perf_counter_ns() - self._began


def _remember_caller(compilation: str) -> None:
    """Remember the user's line that led to a compilation. This is called when Dynamo begins to
    compile, while the user's frames are on the stack. The backward is compiled later, under the
    same number but from another caller, so the first line is kept."""
    if compilation and compilation not in _called_at and len(_called_at) < MAX_CALLERS:
        _called_at[compilation] = places.user_line()


def compilations() -> tuple[Compilation, ...]:
    """Return the latest compilations that Dynamo remembers; it keeps 64."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return ()
    records = []
    for metrics in utils.get_compilation_metrics()[-MAX_COMPILATIONS:]:
        file = getattr(metrics, "co_filename", None) or ""
        line = getattr(metrics, "co_firstlineno", None) or 0
        records.append(
            Compilation(
                place=f"{file}:{line}" if file else "",
                function=getattr(metrics, "co_name", None) or "",
                called_at=_called_at.get(str(getattr(metrics, "compile_id", "")), ""),
                seconds=float(getattr(metrics, "entire_frame_compile_time_s", None) or 0.0),
                recompile_reason=(getattr(metrics, "recompile_reason", None) or "")[
                    :MAX_REASON_CHARS
                ],
                graph_breaks=tuple(
                    str(reason)[:MAX_REASON_CHARS]
                    for reason in sorted(getattr(metrics, "restart_reasons", None) or ())
                ),
                failed=str(getattr(metrics, "fail_reason", None) or "")[:MAX_REASON_CHARS],
            )
        )
    return tuple(records)


def graph_breaks() -> dict[str, int]:
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    counted = utils.counters.get("graph_break", {})
    return {
        str(reason)[:MAX_REASON_CHARS]: int(times)
        for reason, times in list(counted.items())[:MAX_COMPILATIONS]
    }


MIN_LOADER_WAIT_SHARE = 0.2
"""If at least this share of the time of all steps so far was spent waiting for batches, Python
stacks are sampled even if the user did not request it."""


class Recording:
    def __init__(
        self, torch: Any, journal: Journal, settings: Settings, where: Where, world: int,
        stock: Callable[[], tuple[Stock, ...]] = tuple,
    ) -> None:  # fmt: skip
        """`stock` returns what models and optimizers hold."""
        self._torch = torch
        self._journal = journal
        self._settings = settings
        self._world = world
        directory, rank = journal.directory, journal.rank
        self._trace_target = directory.path / f"trace-rank{rank}.json"
        self.tracing = Tracing(torch, self._trace_target, self.miss)
        self.memory = MemoryHistory(
            torch, directory.memory_file(rank), where, self._note_shortage, self.fault
        )
        self._stock = stock
        self._stock_before: tuple[Stock, ...] = ()
        self._trace_file = ""
        self._memory_file = ""
        self._out_of_memory: OutOfMemory | None = None
        self._missing: list[str] = []
        self._no_trace: NoTrace = ""
        self._problems: list[str] = []
        self._sampler: Any = None
        self._input_ns = self._steps_ns = 0
        self.autocast: set[str] = set()
        self.scaler = False

    def miss(self, sentence: str, no_trace: NoTrace = "") -> None:
        self._no_trace = self._no_trace or no_trace
        if sentence not in self._missing and len(self._missing) < 20:
            self._missing.append(sentence)

    def fault(self, where: str, error: BaseException) -> None:
        sentence = f"{where}: {type(error).__name__}: {error}"[:300]
        if sentence not in self._problems and len(self._problems) < 20:
            self._problems.append(sentence)

    def stop_memory_history(self) -> None:
        """Stop the memory history, because the first timed step comes next."""
        with self.guarded("memory history"):
            written = self.memory.stop()
            self._memory_file = written.name if written is not None else ""

    def trace_begins(self, cuda: bool) -> bool:
        with self.guarded("memory of models"):
            self._stock_before = self._stock()
        with self.guarded("trace"):
            return self.tracing.start(cuda)
        return False

    def trace_ends(self, keep: bool = True) -> None:
        if not self.tracing.running:
            return
        with self.guarded("trace"):
            written = self.tracing.stop(keep and not self._journal.broken)
            self._trace_file = written.name if written is not None else ""
        walk, self.tracing.walk = self.tracing.walk, None
        if walk is not None and self._trace_file:
            with self.guarded("memory by line"):
                found = walk.allocations(self._stock_before, self._stock())
                if found is not None:
                    self._journal.allocations(found)

    def close(self) -> None:
        """Stop every recording that is still running."""
        self.trace_ends(keep=False)
        with self.guarded("memory history"):
            self.memory.stop()
        self.stop_sampling()
        with self.guarded("sampling in workers"):
            stack_sampling.uninstall()

    def capture(self, seen: dict[str, Any], cuda: int | None, ended: Status, why: str) -> Capture:
        """Return everything that is known, in one record."""
        facts: dict[str, Any] = dict(seen)
        with self.guarded("flags"):
            facts["flags"] = read_flags(self._torch, tuple(sorted(self.autocast)), self.scaler)
        with self.guarded("device"):
            facts["device"] = describe_device(self._torch, cuda)
        with self.guarded("torch.compile"):
            facts["compilations"] = compilations()
            facts["graph_breaks"] = graph_breaks()
        with self.guarded("distributed"):
            facts["distributed"] = self._backend()
        if self._journal.broken:
            self.fault("the run", OSError(self._journal.broken))
        return Capture(
            rank=self._journal.rank,
            world=self._world,
            pid=os.getpid(),
            trace_file=self._trace_file,
            calls=self.tracing.calls if self._trace_file else (),
            memory_file=self._memory_file,
            out_of_memory=self._out_of_memory,
            ended=ended,
            why=why,
            missing=tuple(self._missing),
            no_trace=self._no_trace,
            problems=tuple(self._problems),
            **facts,
        )

    def workers_sample(self, directory: Path) -> None:
        """Sample Python stacks in loader workers. Every run does so, because it costs the process
        that trains nothing."""
        with self.guarded("sampling in workers"):
            stack_sampling.install(directory, requested=self._settings.python)

    def step(self, index: int, input_ns: int, dur_ns: int) -> None:
        """Note that a step has ended. The first step does not count, because it also fills caches
        and starts libraries."""
        if index:
            self._input_ns += input_ns
            self._steps_ns += dur_ns

    def sample(self, makes_batches: bool = False) -> None:
        """Start to sample Python stacks, unless the steps are traced. If the user did not request
        it, sample only if the program makes its own batches and waits long for them: the samples
        then cost the loader's time."""
        if self._sampler is not None or self.tracing.running:
            return
        waits = makes_batches and self._input_ns >= MIN_LOADER_WAIT_SHARE * self._steps_ns > 0
        if not (self._settings.python or waits):
            return
        with self.guarded("sampling"):
            self._sampler = stack_sampling.Sampler(
                self._journal.directory.path, requested=self._settings.python
            )
            self._sampler.start()
            self._sampler.watch_this_thread()  # the thread that trains need not be the main thread

    def stop_sampling(self) -> None:
        if self._sampler is not None:
            with self.guarded("sampling"):
                self._sampler.stop()
                if self._sampler.problem:
                    self.miss(self._sampler.problem)
            self._sampler = None

    def _backend(self) -> str:
        distributed = self._torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            return ""
        return str(distributed.get_backend())

    def note_shortage(self, step: int, phase: str, models: list[Any]) -> None:
        """Note that memory ran out, if the uncaught exception says so, and what the program's
        objects held then. The request that failed on a device is already known."""
        error = getattr(sys, "last_value", None)
        with self.guarded("out of memory"):
            if self._out_of_memory is None:
                self._out_of_memory = host_memory_shortage(error, step, phase)
        shortage = self._out_of_memory
        if shortage is None or not isinstance(error, BaseException) or not is_out_of_memory(error):
            return
        with self.guarded("what held memory"):
            live, held = live_at_failure(self._torch, models, self._stock(), error)
            self._out_of_memory = replace(shortage, live=live, held=held)

    def _note_shortage(self, what: OutOfMemory) -> None:
        self._out_of_memory = what

    def guarded(self, where: str) -> "_Guarded":
        return _Guarded(self, where)


class _Guarded(contextlib.AbstractContextManager[None]):
    """Records an error of ours, which goes no further."""

    def __init__(self, recording: Recording, where: str) -> None:
        self._recording = recording
        self._where = where

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Exception):
            self._recording.fault(self._where, error)
            return True
        return False

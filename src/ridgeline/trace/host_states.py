"""Works out what one host thread did at every moment, as disjoint spans by cause; which threads
drive the device; and when each device operation was launched.

A DataLoader's `__next__` that copies, allocates and synchronises is input; a synchronisation
inside a barrier is waiting for ranks. What no recorded call or operator covers is the program's
own Python, unless it is shorter than MAX_LAUNCH_PAUSE_NS: between two operators of an eager loop
Python takes 5 to 100 µs, and that is the cost of launching, not work of its own.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Cause
from ridgeline.trace.columns import Calls, Events, Kind
from ridgeline.trace.intervals import NOTHING, Spans, closed, merge, subtract, union
from ridgeline.trace.links import Links, Rows
from ridgeline.trace.trace import Trace, once_per_trace

MAX_LAUNCH_PAUSE_NS = 200_000
"""A pause between two operators up to this length is the cost of launching; a longer one is the
program's own code."""

ORDER: tuple[Cause, ...] = (
    "garbage collection",
    "compile",
    "input",
    "collective wait",
    "allocator",
    "transfer",
    "synchronisation",
    "launch-bound",
)
"""The first of these causes that covers a moment is its cause. If none does, it is "other host"."""


class HostStates(NamedTuple):
    """Disjoint spans for each cause of ORDER, and the time in which the thread did anything."""

    spans: dict[Cause, Spans]
    active: Spans


@once_per_trace
def states_of(trace: Trace, links: Links, lane: int) -> HostStates:
    """Return the states of one thread."""
    calls = trace.calls.take(trace.calls.lane == lane)
    ops = trace.ops.take(trace.ops.lane == lane)
    spans = trace.annotations.take(trace.annotations.lane == lane)
    frames = trace.frames.take(trace.frames.lane == lane)
    to_device, to_host = copy_calls(trace, links, lane)
    raw: dict[Cause, Spans] = {
        "garbage collection": _named(trace, is_collection, frames, spans),
        "compile": _named(trace, is_compile, frames, spans, ops, calls),
        "input": _named(trace, is_input, frames, spans),
        "collective wait": _named(trace, is_collective_wait, frames, spans, ops),
        "allocator": _named(trace, is_allocator_call, calls),
        "transfer": to_device,
        "synchronisation": merge(
            _named(trace, is_sync_call, calls),
            to_host,
            _named(trace, BLOCKING_OPS.__contains__, ops),
        ),
    }
    working = merge(_spans(ops), _spans(calls))
    raw["launch-bound"] = closed(merge(working, *raw.values()), MAX_LAUNCH_PAUSE_NS)
    disjoint: dict[Cause, Spans] = {}
    taken = NOTHING
    for cause in ORDER:
        disjoint[cause] = subtract(raw[cause], taken)
        taken = merge(taken, raw[cause])
    return HostStates(disjoint, taken)


def copy_calls(trace: Trace, links: Links, lane: int) -> tuple[Spans, Spans]:
    """Return the host time spent on copies to the device, and on copies to the host.

    A copy to the device lasts from the start of the copying operator (the host first copies a
    pageable source) to the end of the call. A copy to the host lasts as long as its call, which
    waits if the target is pageable.
    """
    call, device = links.device_call, trace.device
    copies = np.flatnonzero((device.kind == Kind.MEMCPY) & (call >= 0))
    copies = copies[trace.calls.lane[call[copies]] == lane]
    to_device = copies[trace.names_where(device.name[copies], _to_device)]
    to_host = copies[trace.names_where(device.name[copies], _to_host)]
    rows = call[to_device]
    op = _outermost_copy(trace, links, links.call_op[rows])
    start = np.where(
        op >= 0, trace.ops.ts[np.maximum(op, 0)] if len(trace.ops) else 0, trace.calls.ts[rows]
    )
    rows_back = call[to_host]
    return (
        union(start, trace.calls.end[rows]),
        union(trace.calls.ts[rows_back], trace.calls.end[rows_back]),
    )


@once_per_trace
def sync_spans(trace: Trace, links: Links) -> Events:
    """Return every call that made the host wait for the device, on any thread, in order of
    start."""
    calls = trace.calls
    blocking = trace.names_where(calls.name, is_sync_call)
    device = trace.device
    back = (device.kind == Kind.MEMCPY) & trace.names_where(device.name, _to_host)
    rows = links.device_call[back]
    waits = np.zeros(len(calls), bool)
    waits[rows[rows >= 0]] = True
    waits &= trace.names_where(calls.name, is_copy_call)
    return calls.take(blocking | waits)


def _to_device(name: str) -> bool:
    return "HtoD" in name or "HostToDevice" in name or "Host -> Device" in name


def _to_host(name: str) -> bool:
    return "DtoH" in name or "DeviceToHost" in name or "Device -> Host" in name


def _outermost_copy(trace: Trace, links: Links, op: Rows) -> Rows:
    """Return the outermost of the copying operators around each; -1 where there is none."""
    if not len(trace.ops):
        return np.full(len(op), -1, np.int64)
    copying = trace.names_where(trace.ops.name, COPY_OPS.__contains__)
    outermost = np.full(len(op), -1, np.int64)
    current = op.copy()
    while (inside := current >= 0).any():
        is_copy = inside & copying[np.maximum(current, 0)]
        outermost = np.where(is_copy, current, outermost)
        current = np.where(is_copy, links.op_parent[np.maximum(current, 0)], -1)
    return outermost


def _named(trace: Trace, test: Callable[[str], bool], *tables: Events) -> Spans:
    return merge(*(_spans(t.take(trace.names_where(t.name, test))) for t in tables))


def _spans(table: Events) -> Spans:
    return union(table.ts, table.end, sorted_=True)


_BLOCKING_COPY = re.compile(
    r"^(cuda|hip|cu)(Memcpy|MemcpyWithStream|Memcpy2D|MemcpyDtoH|MemcpyHtoD)(_v\d+|_ptds)*$"
)
_COPY_CALL = re.compile(r"^(cuda|hip|cu)Memcpy")
_ALLOCATOR = re.compile(
    r"^(cuda|hip|cu)(Malloc|Free|HostAlloc|MallocHost|FreeHost|HostMalloc|HostFree|HostRegister"
    r"|HostUnregister|MallocAsync|FreeAsync|MallocManaged|MallocFromPoolAsync|ExtMallocWithFlags"
    r"|MemAlloc|MemFree|MemHostAlloc|MemCreate|MemMap|MemUnmap|MemRelease|MemAddressReserve"
    r"|MemAddressFree|MemSetAccess)(_v\d+|_ptsz)*$"
)
_LOADING = re.compile(r"^(cuda|hip|cu)(Module|Library)(Load|GetModule|LoadData)")
_GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")
_COMPILING = re.compile(
    r"_compile\.compile_inner|compile_fx|\(dynamo_timed\)|^triton\.compile"
    r"|OutputGraph\.call_user_compiler"
)
# what runs a compiled function lives in the same folders as what compiles it
_COMPILER_FRAME = re.compile(
    r"torch/_dynamo/(convert_frame|symbolic_convert|output_graph|guards|bytecode_transformation"
    r"|variables/)"
    r"|torch/_inductor/(compile_fx|graph|scheduler|codecache|async_compile|lowering|ir"
    r"|select_algorithm|codegen/|fx_passes/)"
    r"|torch/_inductor/runtime/triton_heuristics\.py\(\d+\): (precompile|autotune|benchmark_all)"
    r"|torch/_functorch/aot_autograd\.py\(\d+\): aot_module"
    r"|triton/compiler/compiler\.py\(\d+\): compile"
)
_RUNNING_FRAME = re.compile(r"_inductor/.*: (__call__|run|_fn|inner|wrapper|current_callable)$")
_INPUT_FRAME = re.compile(
    r"torch[/\\]utils[/\\]data[/\\].*: "
    r"(__next__|__iter__|_next_data|_get_iterator|_try_get_data|_get_data)$"
)
_WAIT = re.compile(
    r"^(gloo|mpi|ucc):|barrier|^c10d::(barrier|recv_|recv_any_source_|monitored_barrier_)"
    r"|: (barrier|monitored_barrier)$|<built-in method wait of .*Work"
)
_COLLECT = re.compile(r"<built-in (method|function) collect\b|\bgc\.collect\b|^gc: ")

BLOCKING_OPS = frozenset({
    "aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero",
    "aten::equal", "aten::masked_select", "aten::unique_consecutive", "aten::_unique2",
})  # fmt: skip
"""Operators that block the host: it needs their result, or its size, to go on."""

COPY_OPS = frozenset({"aten::to", "aten::_to_copy", "aten::copy_", "aten::pin_memory"})


def is_waiting_call(name: str) -> bool:
    """Return whether the host does nothing in this call but wait for the device, for any vendor:
    cudaDeviceSynchronize, hipStreamSynchronize, cuEventSynchronize, cuCtxSynchronize …"""
    return "ynchronize" in name


def is_sync_call(name: str) -> bool:
    """Return whether a runtime call returns only when the device has caught up."""
    return is_waiting_call(name) or bool(_BLOCKING_COPY.match(name))


def is_copy_call(name: str) -> bool:
    return bool(_COPY_CALL.match(name))


def is_allocator_call(name: str) -> bool:
    return bool(_ALLOCATOR.match(name))


def is_graph_launch(name: str) -> bool:
    return bool(_GRAPH_LAUNCH.match(name))


def is_compiling(name: str) -> bool:
    """Return whether a span or a function is the compiler at work. Running compiled code is not."""
    if ".py(" in name:
        return bool(_COMPILER_FRAME.search(name)) and not _RUNNING_FRAME.search(name)
    return bool(_COMPILING.search(name))


def is_compile(name: str) -> bool:
    """Return whether a name is that of compiling, or of loading compiled code."""
    return is_compiling(name) or bool(_LOADING.match(name))


def is_input(name: str) -> bool:
    """Return whether a name is that of waiting for the next batch, or of making it."""
    return name.startswith("enumerate(DataLoader)") or bool(_INPUT_FRAME.search(name))


def is_collective_wait(name: str) -> bool:
    """Return whether the host itself waits for other ranks (a barrier, gloo), and not a kernel on
    the device."""
    return bool(_WAIT.search(name))


def is_collection(name: str) -> bool:
    return bool(_COLLECT.search(name))


_WAITING_COPIES = ("cudaMemcpy", "cuMemcpy", "hipMemcpy", "hipMemcpyWithStream")
"""Calls that return when the copy is done, unlike their …Async variants."""


def synchronising(trace: Trace, calls: Calls) -> NDArray[np.bool_]:
    return trace.names_where(calls.name, is_waiting_call)


def blocking(trace: Trace, calls: Calls) -> NDArray[np.bool_]:
    """Return the copies that may hold the host: all but peer copies and fills."""
    return trace.names_where(
        calls.name,
        lambda name: name in _WAITING_COPIES or "MemcpyAsync" in name or "MemcpyDto" in name,
    )


@once_per_trace
def driving_lanes(trace: Trace, links: Links) -> NDArray[np.int64]:
    """Return the threads that launch device work, and the main thread; without device work, all
    threads with operators. Threads that poll events or pin memory do not count."""
    launching = links.launch_lane[links.launch_lane >= 0]
    drive = launching if len(launching) else trace.ops.lane
    lanes = np.unique(np.append(drive, links.main_lane)).astype(np.int64)
    return lanes[lanes >= 0]


@once_per_trace
def launched(trace: Trace, links: Links) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when each device operation was launched and on which lane; lane -1 where that is not
    known."""
    moment = np.full(len(trace.device), -1, np.int64)
    call, op = links.device_call, links.device_op
    by_op, by_call = np.flatnonzero((op >= 0) & (call < 0)), np.flatnonzero(call >= 0)
    moment[by_op] = trace.ops.ts[op[by_op]]
    moment[by_call] = trace.calls.ts[call[by_call]]
    return moment, links.launch_lane.astype(np.int64)

"""What the host is doing, told by the names of calls, operators, spans and Python functions.

Every list is of names seen in traces of CUDA and HIP, torch 1.8 to 2.13.
"""

import re

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
_RUNS = re.compile(r"_inductor/.*: (__call__|run|_fn|inner|wrapper|current_callable)$")
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
"""Operators whose result the host must have, or whose size it must know, before it can go on."""

COPY_OPS = frozenset({"aten::to", "aten::_to_copy", "aten::copy_", "aten::pin_memory"})


def is_waiting_call(name: str) -> bool:
    """A call in which the host does nothing but wait for the device, for any vendor:
    cudaDeviceSynchronize, hipStreamSynchronize, cuEventSynchronize, cuCtxSynchronize …"""
    return "ynchronize" in name


def is_sync_call(name: str) -> bool:
    """A runtime call that returns only when the device has caught up."""
    return is_waiting_call(name) or bool(_BLOCKING_COPY.match(name))


def is_copy_call(name: str) -> bool:
    return bool(_COPY_CALL.match(name))


def is_allocator_call(name: str) -> bool:
    return bool(_ALLOCATOR.match(name))


def is_graph_launch(name: str) -> bool:
    return bool(_GRAPH_LAUNCH.match(name))


def is_compiling(name: str) -> bool:
    """The compiler at work, by a span's or a function's name; not the running of its code."""
    if ".py(" in name:
        return bool(_COMPILER_FRAME.search(name)) and not _RUNS.search(name)
    return bool(_COMPILING.search(name))


def is_compile(name: str) -> bool:
    """Compiling, or loading compiled code."""
    return is_compiling(name) or bool(_LOADING.match(name))


def is_input(name: str) -> bool:
    """Waiting for, or making, the next batch."""
    return name.startswith("enumerate(DataLoader)") or bool(_INPUT_FRAME.search(name))


def is_collective_wait(name: str) -> bool:
    """The host itself waits for other ranks (a barrier, gloo), not a kernel on the device."""
    return bool(_WAIT.search(name))


def is_collection(name: str) -> bool:
    return bool(_COLLECT.search(name))

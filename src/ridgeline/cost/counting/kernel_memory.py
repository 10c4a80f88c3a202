"""Memory that kernels allocate internally, which no pass on tensors without data can see.

A formula gives it for float32 convolutions on a CPU (`transient_bytes`). For recurrent layers and
16-bit products on a CPU it depends on how oneDNN blocks the work, so each distinct call runs once
on a small real problem under the profiler (`internal_bytes`). On a GPU, `workspace_bytes` is what
cuBLAS keeps. What none of them tells is named (`unknown_kernel`).
"""

import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace

from ridgeline.errors import RidgelineError
from ridgeline.measure.peak import allocations_of_calls, highest

_SIXTEEN_BITS = (torch.bfloat16, torch.float16)
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")
_RECURRENT = ("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward")
_LONG_OPERANDS: dict[str, tuple[int, ...]] = {
    "aten::convolution": (0,),
    "aten::convolution_backward": (0, 1),
    "aten::mkldnn_rnn_layer": (0,),
    "aten::mkldnn_rnn_layer_backward": (0, 7, 10),
}
"""The positions of the operands whose first dimension is the length of the call."""
MAX_PROBED_SIZE = 2048
"""Larger sizes of a probed product are cut to this. oneDNN's scratch memory grows with its blocks,
which stop to grow there: between 1,000 and 16,384 rows it was the same."""
_SHORT_PROBE_BATCH, _LONG_PROBE_BATCH = 4, 8


class Operand(Struct, frozen=True):
    """A tensor of a kernel call, without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class KernelCall(Struct, frozen=True):
    """A call that can be run again on zeros. `length` is the size that the internal memory is
    proportional to (time steps or samples); 0 if there is none."""

    name: str
    func: Any
    args: tuple[Any, ...]
    length: int = 0


def unpredicted_call(func: Any, name: str, args: tuple[Any, ...]) -> KernelCall | None:
    """Return the call if its internal memory must be measured, else None."""
    first = next((a for a in args if isinstance(a, torch.Tensor)), None)
    if first is None or first.device.type != "cpu":
        return None
    if name in _RECURRENT:
        return KernelCall(name, func, _operands(args), first.shape[0])
    if first.dtype in _SIXTEEN_BITS and name in _CONVOLUTIONS:
        return KernelCall(name, func, _operands(args), first.shape[0])
    if first.dtype in _SIXTEEN_BITS and name in _PRODUCTS:
        return KernelCall(name, func, tuple(map(_cut, _operands(args))))
    return None


def _operands(args: tuple[Any, ...]) -> tuple[Any, ...]:
    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Operand(tuple(value.shape), tuple(value.stride()), value.dtype)
        return tuple(value) if isinstance(value, list) else value

    return tuple(described(value) for value in args)


def _cut(value: Any) -> Any:
    if not isinstance(value, Operand):
        return value
    shape = tuple(min(size, MAX_PROBED_SIZE) for size in value.shape)
    return replace(value, shape=shape)


def internal_bytes(calls: Iterable[KernelCall]) -> tuple[dict[KernelCall, int], set[str]]:
    """Return the bytes that each kernel takes beside its results, and the names of those that could
    not be run. All run in one session of the profiler, because its start takes a second."""
    sizes: dict[KernelCall, int] = {}
    failed: set[str] = set()
    pending: list[tuple[KernelCall, list[tuple[int, Callable[[], object]]]]] = []
    for call in calls:
        if call in _KNOWN:
            sizes[call] = _KNOWN[call]
            continue
        try:
            pending.append((call, [(n, _runnable(call, n)) for n in _lengths(call)]))
        except (RuntimeError, TypeError):
            failed.add(call.name)
    if not pending:
        return sizes, failed
    runs = [run for _, probes in pending for _, run in probes]
    try:
        with torch.no_grad():
            events = iter(allocations_of_calls(runs))
    except (RidgelineError, RuntimeError):
        return sizes, failed | {call.name for call, _ in pending}
    for call, probes in pending:
        points = []
        for length, _ in probes:
            deltas = next(events)
            points.append((length, max(highest(deltas) - sum(deltas), 0)))
        sizes[call] = _KNOWN[call] = _extended(points, call.length)
    return sizes, failed


_KNOWN: dict[KernelCall, int] = {}


def _lengths(call: KernelCall) -> tuple[int, ...]:
    if call.name in _RECURRENT:
        short, long = _SHORT_PROBE_STEPS, _LONG_PROBE_STEPS
    else:
        short, long = _SHORT_PROBE_BATCH, _LONG_PROBE_BATCH
    return (call.length,) if call.length <= long else (short, long)


def _extended(points: list[tuple[int, int]], length: int) -> int:
    """Return the bytes at a length, by a line through the last two points."""
    last, size = points[-1]
    if len(points) == 1 or length <= last:
        return size
    before, smaller = points[0]
    return size + max((length - last) * (size - smaller) // (last - before), 0)


def _runnable(call: KernelCall, length: int) -> Callable[[], object]:
    """Return the call on zeros, with the operands cut to a length."""

    def made(position: int, value: Any) -> Any:
        if not isinstance(value, Operand):
            return list(value) if isinstance(value, tuple) else value
        shape = value.shape
        if length < call.length and position in _LONG_OPERANDS[call.name]:
            shape = (length, *shape[1:])
        last = sum((n - 1) * step for n, step in zip(shape, value.stride, strict=True))
        # With the gaps between the rows, because a kernel copies what is not contiguous.
        return torch.zeros(last + 1, dtype=value.dtype).as_strided(shape, value.stride)

    args = [made(position, value) for position, value in enumerate(call.args)]
    if call.name == "aten::mkldnn_rnn_layer_backward":
        args[-1] = _forward_workspace(args)
    run = call.func
    with torch.no_grad():
        run(*args)  # the first call also makes what oneDNN keeps
    return lambda: run(*args)


def _forward_workspace(args: list[Any]) -> torch.Tensor:
    """Return the workspace that the forward of a recurrent layer hands to this backward."""
    x, w_ih, w_hh, b_ih, b_hh, h, c = args[:7]
    reverse, mode, hidden, layers, biases, _, bidirectional, sizes, batch_first = args[13:22]
    out = torch.ops.aten.mkldnn_rnn_layer.default(
        x, w_ih, w_hh, b_ih, b_hh, h, c, reverse, sizes, mode, hidden, layers, biases,
        bidirectional, batch_first, True,
    )  # fmt: skip
    workspace: torch.Tensor = out[_WORKSPACE_OUTPUT]
    return workspace


_CUBLAS_BYTES, _CUBLAS_HOPPER_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024, 32 * 2**20
"""Bytes PyTorch gives cuBLAS for each handle and stream: ":4096:2:16:8", and 32 MiB on Hopper."""
_HOPPER = (9, 0)


def workspace_bytes(device: torch.device, training: bool, ops: Iterable[str]) -> int:
    """Return what cuBLAS keeps on a GPU: one workspace for the thread that runs forward, and one
    for autograd's thread, which has a handle of its own."""
    if device.type != "cuda" or not any(name in _PRODUCTS for name in ops):
        return 0
    configured = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    size = sum(int(kib) * int(n) * 1024 for kib, n in re.findall(r":(\d+):(\d+)", configured))
    if not size:
        hopper = torch.cuda.get_device_capability(device) == _HOPPER
        size = _CUBLAS_HOPPER_BYTES if hopper else _CUBLAS_BYTES
    return size * (2 if training else 1)


def unknown_kernel(device: torch.device, name: str) -> bool:
    """Return whether a kernel takes internal memory that nothing here predicts: cuDNN chooses the
    workspace of a convolution or a recurrent layer when it runs."""
    return device.type == "cuda" and (name in _CONVOLUTIONS or name.startswith("aten::_cudnn_rnn"))


_SHORT_PROBE_STEPS, _LONG_PROBE_STEPS = 8, 16
"""The lengths of the two probes. With fewer time steps, most of the workspace is alignment."""
_TRAIN_ARGUMENT = 15
_WORKSPACE_OUTPUT = 3


def hidden_bytes(name: str, args: tuple[Any, ...], out: Any) -> int:
    """Return the size of the workspace that the real kernel of a recurrent layer would return in
    place of an empty tensor."""
    if name != "aten::mkldnn_rnn_layer" or not args[_TRAIN_ARGUMENT]:
        return 0
    if out[_WORKSPACE_OUTPUT] is None or out[_WORKSPACE_OUTPUT].numel():
        return 0  # no gradient is needed, or the workspace is real
    x, state = args[0], args[5]
    steps, batch, width = x.shape
    key = (batch, width, state.shape[-1], args[7], args[9], *args[10:15], x.dtype)
    try:
        if steps <= _LONG_PROBE_STEPS:
            return _probe(steps, key, args[1].shape, args[2].shape)
        short, long = (
            _probe(n, key, args[1].shape, args[2].shape)
            for n in (_SHORT_PROBE_STEPS, _LONG_PROBE_STEPS)
        )
    except RuntimeError:
        return 0  # a build of torch without oneDNN
    added_steps = _LONG_PROBE_STEPS - _SHORT_PROBE_STEPS
    return int(long + (steps - _LONG_PROBE_STEPS) * (long - short) // added_steps)


def transient_bytes(name: str, args: tuple[Any, ...], out: Any) -> int:
    """Return the memory that a float32 convolution on a CPU uses internally, in addition to its
    operands and results. oneDNN converts tensors from the contiguous layout to its own and back.

    This was measured over 15 shapes each in one, two and three dimensions. In forward there are the
    converted input and weight, or the converted output beside the result. In backward there are the
    converted input and gradient; with a stride, the gradient of the input exists a second time.
    """
    if name == "aten::convolution":
        x, weight, result = args[0], args[1], out
        if not _reorders(x):
            return 0
        if args[6]:  # transposed
            return 2 * _tensor_bytes(result)
        return max(_tensor_bytes(x) + _tensor_bytes(weight), _tensor_bytes(result))
    if name == "aten::convolution_backward" and _reorders(args[1]):
        gradient, x, stride, wants_input = args[0], args[1], args[4], args[10][0]
        scattered = 2 * _tensor_bytes(x) if wants_input and max(stride) > 1 else 0
        return max(_tensor_bytes(x) + _tensor_bytes(gradient), scattered)
    return 0


def _reorders(x: torch.Tensor) -> bool:
    if x.device.type != "cpu" or x.dtype is not torch.float32 or not torch.backends.mkldnn.enabled:
        return False
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = layouts.get(x.dim())
    return layout is None or not x.is_contiguous(memory_format=layout)


def _tensor_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


@cache
def _probe(steps: int, key: tuple[Any, ...], *weights: torch.Size) -> int:
    # The modes that are active here do not hold in a new thread: it has real tensors and gradients.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ridgeline") as fresh:
        return fresh.submit(_workspace_bytes, steps, key, *weights).result()


def _workspace_bytes(steps: int, key: tuple[Any, ...], *weights: torch.Size) -> int:
    batch, width, hidden, reverse, mode, size, layers, biases, both, batch_first, dtype = key

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, requires_grad=True)

    gates, state = weights[0][0], zeros(batch, hidden)
    out = torch.ops.aten.mkldnn_rnn_layer.default(
        zeros(steps, batch, width), zeros(*weights[0]), zeros(*weights[1]),
        zeros(gates), zeros(gates), state, state, reverse, [], mode, size, layers, biases,
        both, batch_first, True,
    )  # fmt: skip
    workspace: torch.Tensor = out[_WORKSPACE_OUTPUT]
    return workspace.numel() * workspace.itemsize

"""Memory that kernels take and no operator shows: what they hand on to their backward where the
rule for tensors without data says zero, and what they take only while they run.

oneDNN's recurrent layers keep a workspace that dwarfs their output (a 2-layer LSTM measured: 98 MiB
at peak, 25 MiB without it). Its size is known to the library alone, and is a line in the number of
time steps: two tiny real calls give the line.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

_SHORT, _LONG = 8, 16
"""Time steps of the two probes; shorter ones are mostly alignment."""
_TRAIN_ARGUMENT = 15
_WORKSPACE_OUTPUT = 3


def hidden_bytes(name: str, args: tuple[Any, ...], out: Any) -> int:
    """What the real kernel would have returned as workspace in place of an empty tensor."""
    if name != "aten::mkldnn_rnn_layer" or not args[_TRAIN_ARGUMENT]:
        return 0
    if out[_WORKSPACE_OUTPUT] is None or out[_WORKSPACE_OUTPUT].numel():
        return 0  # none where no gradient is wanted, or a real one
    x, state = args[0], args[5]
    steps, batch, width = x.shape
    key = (batch, width, state.shape[-1], args[7], args[9], *args[10:15])
    try:
        if steps <= _LONG:
            return _probe(steps, key, args[1].shape, args[2].shape)
        short, long = (_probe(n, key, args[1].shape, args[2].shape) for n in (_SHORT, _LONG))
    except RuntimeError:
        return 0  # a build of torch without oneDNN: nothing to add
    return int(long + (steps - _LONG) * (long - short) // (_LONG - _SHORT))


def transient_bytes(name: str, args: tuple[Any, ...], out: Any) -> int:
    """What a convolution on a CPU takes inside itself beyond its operands and results: oneDNN
    reorders tensors in contiguous layout to its own and back.

    Measured over 15 shapes each in one, two and three dimensions. Forward: reordered input and
    weight beside the reordered output, or the latter beside the result. Backward: reordered input
    and gradient; with a stride the input's gradient a second time, to scatter into.
    """
    if name == "aten::convolution":
        x, weight, result = args[0], args[1], out
        if not _reorders(x):
            return 0
        if args[6]:  # transposed
            return 2 * _bytes(result)
        return max(_bytes(x) + _bytes(weight), _bytes(result))
    if name == "aten::convolution_backward" and _reorders(args[1]):
        gradient, x, stride, wants_input = args[0], args[1], args[4], args[10][0]
        scattered = 2 * _bytes(x) if wants_input and max(stride) > 1 else 0
        return max(_bytes(x) + _bytes(gradient), scattered)
    return 0


def _reorders(x: torch.Tensor) -> bool:
    if x.device.type != "cpu" or x.dtype is not torch.float32 or not torch.backends.mkldnn.enabled:
        return False
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = layouts.get(x.dim())
    return layout is None or not x.is_contiguous(memory_format=layout)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


@cache
def _probe(steps: int, key: tuple[Any, ...], *weights: torch.Size) -> int:
    # a thread of its own has none of the modes around us: real tensors, gradients on
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ridgeline") as fresh:
        return fresh.submit(_workspace_bytes, steps, key, *weights).result()


def _workspace_bytes(steps: int, key: tuple[Any, ...], *weights: torch.Size) -> int:
    batch, width, hidden, reverse, mode, size, layers, biases, bidirectional, batch_first = key

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, requires_grad=True)

    gates, state = weights[0][0], zeros(batch, hidden)
    out = torch.ops.aten.mkldnn_rnn_layer.default(
        zeros(steps, batch, width), zeros(*weights[0]), zeros(*weights[1]),
        zeros(gates), zeros(gates), state, state, reverse, [], mode, size, layers, biases,
        bidirectional, batch_first, True,
    )  # fmt: skip
    workspace: torch.Tensor = out[_WORKSPACE_OUTPUT]
    return workspace.numel() * workspace.itemsize

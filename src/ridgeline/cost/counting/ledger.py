"""The ledger of a pass: every tensor storage from allocation to release, and the peak of memory.

It works on real, fake and meta tensors, because a fake storage has a size and a lifetime too.
Memory that a kernel allocates internally is not seen. It is estimated for convolutions on a CPU
(`transient_bytes`) and for recurrent layers (`hidden_bytes`); the rest is the gap to a measured
peak.
"""

import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from msgspec import Struct

from ridgeline.cost.counting.operands import dtype_name, stored_parts

CUDA_BLOCK_BYTES = 512
"""CUDA's caching allocator rounds sizes up to a multiple of this."""


class Entry(Struct):
    """One storage. `born` and `died` are numbers of events, which the ledger counts."""

    kind: str
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    module: str
    phase: str
    born: int
    died: int | None = None


class StorageLedger:
    """Records the storages of a pass. `round_to` is the unit in which the allocator hands out
    memory."""

    def __init__(self, round_to: int = 1) -> None:
        self.entries: list[Entry] = []
        self.live_bytes = 0
        self.peak_bytes = 0
        self.peak_event = 0
        self.peak_context = ("", "", "")
        self.peak_transient_bytes = 0
        """The part of the peak that a kernel used internally."""
        self._round_to = round_to
        self._open: dict[int, Entry] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._event = 0

    @property
    def now(self) -> int:
        return self._event

    def entry_of(self, tensor: torch.Tensor) -> Entry | None:
        storage = _storage(tensor)
        return None if storage is None else self._open.get(storage._cdata)

    def entries_of(self, tensor: torch.Tensor) -> list[Entry]:
        """Return the entries of a tensor. A sparse tensor has one for each of its components."""
        entries = (self.entry_of(part) for part in stored_parts(tensor))
        return [entry for entry in entries if entry is not None]

    def add(
        self,
        tensor: torch.Tensor,
        kind: str,
        op: str = "",
        module: str = "",
        phase: str = "",
        hidden_bytes: int = 0,
    ) -> Entry | None:
        """Record a storage if it is new; a view of a known storage is ignored. `hidden_bytes` is
        what it would have on a real device in addition to its own size."""
        storage = _storage(tensor)
        if storage is None:
            return None
        key = storage._cdata
        if key in self._open:
            return None
        size = storage.nbytes() + hidden_bytes
        size = -(-size // self._round_to) * self._round_to
        self._event += 1
        entry = Entry(
            kind,
            size,
            tuple(tensor.shape),
            dtype_name(tensor.dtype),
            op,
            module,
            phase,
            self._event,
        )
        self.entries.append(entry)
        self._open[key] = entry
        self._references[key] = weakref.ref(storage, lambda _: self._close(key))
        self.live_bytes += size
        self._update_peak(0, (phase, op, module))
        return entry

    def add_transient(self, size: int, op: str, module: str, phase: str) -> None:
        """Record memory that one operator uses only while it runs."""
        self._update_peak(size, (phase, op, module))

    def _update_peak(self, transient: int, context: tuple[str, str, str]) -> None:
        if self.live_bytes + transient > self.peak_bytes:
            self.peak_bytes = self.live_bytes + transient
            self.peak_transient_bytes = transient
            self.peak_event = self._event
            self.peak_context = context

    def add_packed(self, tensor: torch.Tensor, kind: str) -> int:
        """Record memory outside of any tensor that exists as long as the model."""
        self._event += 1
        size = tensor.numel() * tensor.itemsize
        self.entries.append(
            Entry(
                kind, size, tuple(tensor.shape), dtype_name(tensor.dtype), "", "", "", self._event
            )
        )
        self.live_bytes += size
        return size

    def add_all(self, tensors: Iterable[torch.Tensor], kind: str) -> int:
        """Record all tensors, and return the bytes that were new."""
        before = self.live_bytes
        for tensor in tensors:
            for part in stored_parts(tensor):
                self.add(part, kind)
        return self.live_bytes - before

    def _close(self, key: int) -> None:
        entry = self._open.pop(key, None)
        self._references.pop(key, None)
        if entry is not None:
            self._event += 1
            entry.died = self._event
            self.live_bytes -= entry.bytes

    def release(self) -> None:
        """Stop to follow the storages that still exist."""
        self._references.clear()
        self._open.clear()

    def alive_at(self, event: int) -> list[Entry]:
        return [e for e in self.entries if e.born <= event and (e.died is None or e.died > event)]


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, nested, quantised-packed
        return None


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
    key = (batch, width, state.shape[-1], args[7], args[9], *args[10:15])
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
    """Return the memory that a convolution on a CPU uses internally, in addition to its operands
    and results. oneDNN converts tensors from the contiguous layout to its own and back.

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

"""The ledger of a pass: every tensor storage from allocation to release, and the peak of memory.

It works on real, fake and meta tensors, because a fake storage has a size and a lifetime too.
Memory that a kernel allocates internally is not seen. `kernel_memory` estimates it, and names the
kernels for which it cannot.
"""

import weakref
from collections.abc import Iterable

import torch
from msgspec import Struct

from ridgeline.cost.counting.kernel_memory import KernelCall, internal_bytes
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
        self._unsettled: list[tuple[KernelCall, int, int, tuple[str, str, str]]] = []
        """Kernels whose internal memory is measured after the pass, each with the bytes and the
        event at which it ran, and its phase, operator and module."""
        self.unpredicted: set[str] = set()
        """The operators whose internal memory could not be told."""

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

    def add_kernel(self, call: KernelCall, module: str, phase: str) -> None:
        """Record a kernel whose internal memory `settle` finds out."""
        self._unsettled.append((call, self.live_bytes, self._event, (phase, call.name, module)))

    def settle(self) -> None:
        """Add the internal memory of the recorded kernels to the peak. Each distinct call runs once
        for this, on a small real problem, so no pass must be in progress."""
        sizes, failed = internal_bytes(dict.fromkeys(call for call, *_ in self._unsettled))
        self.unpredicted |= failed
        for call, live, event, context in self._unsettled:
            size = sizes.get(call, 0)
            if live + size > self.peak_bytes:
                self.peak_bytes, self.peak_transient_bytes = live + size, size
                self.peak_event, self.peak_context = event, context
        self._unsettled.clear()

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

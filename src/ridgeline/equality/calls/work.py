"""What one call computes, counted on a real pass through the operators torch dispatches."""

import contextlib
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.cost.counting.counter import CostMode
from ridgeline.cost.counting.ledger import StorageLedger
from ridgeline.cost.counting.modules import ModuleTracker
from ridgeline.cost.counting.operands import operator_name, storage_key, stored_parts
from ridgeline.cost.counting.surroundings import silenced, threads_noticed
from ridgeline.cost.counting.traffic import moved_bytes, stored_bytes
from ridgeline.cost.counting.values import contained, held
from ridgeline.equality.calls.calling import Caller, as_written, graphs_noticed
from ridgeline.equality.calls.keeping import Keeping
from ridgeline.equality.calls.observed import Work


class _Reads(TorchDispatchMode):
    """How much of each tensor that was there before the call the largest single reader of it
    reads: an embedding reads a few rows of its table, a product all of its weights."""

    supports_higher_order_operators = True

    def __init__(self, there: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._there = there
        self.bytes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        with contextlib.suppress(Exception):
            self._note(func, args, kwargs, out)
        return out

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        inputs = [p for t in contained((args, kwargs)) for p in stored_parts(t)]
        inputs = [t for t in inputs if storage_key(t) in self._there]
        if not inputs:
            return
        name = operator_name(func)
        if "index" in name or "gather" in name or "embedding" in name:
            return
        moved = moved_bytes(func, name, args, kwargs, out, None)
        for tensor in inputs:
            key = storage_key(tensor)
            shown = min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())
            self.bytes[key] = max(self.bytes.get(key, 0), min(shown, moved))


def count_work(caller: Caller, keeping: Keeping) -> Work:
    """One call, compiled code run as it was written."""
    modules, ledger = ModuleTracker(torch.nn.Module()), StorageLedger()
    mode = CostMode(modules, ledger)
    reads = _Reads({storage_key(held.tensor) for held in keeping.reach.held})
    with (
        as_written(),
        silenced(),
        graphs_noticed() as graphs,
        threads_noticed() as threads,
        modules,
        mode,
        reads,
    ):
        value, _ = caller(0)
    unseen = [*(["CUDA graphs"] if graphs else []), *(["Python threads"] if threads else [])]
    # Counted as a full square; a block mask leaves out what its data says, 7 of 8 blocks at times.
    if any("flex_attention" in site.op for site in mode.tallies):
        unseen.append("flex attention")
    flops: dict[str, int] = {}
    convolution: dict[str, int] = {}
    for site, tally in mode.tallies.items():
        counted = convolution if "conv" in site.op else flops
        done = max(tally.flops - tally.skipped_flops, 0)
        if done:
            counted[site.dtype] = counted.get(site.dtype, 0) + done
    own = [t for t in held(value) if storage_key(t) not in reads.bytes]
    return Work(
        flops=flops,
        convolution_flops=convolution,
        all_flops=sum(tally.all_flops for tally in mode.tallies.values()),
        bytes=sum(tally.bytes for tally in mode.tallies.values()),
        read_bytes=sum(reads.bytes.values()),
        written_bytes=stored_bytes(*own) if own else 0,
        unseen=tuple(unseen),
    )

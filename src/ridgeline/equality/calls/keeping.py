"""The state a workload starts from, kept so that it can be put back.

Three check calls of a training step train the model by three steps. Two variants that share a
model must both start from where it stood, and its owner must find it there afterwards.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from ridgeline.equality.calls.digest import digest
from ridgeline.equality.calls.leaf import Leaf, Room, leaf_of
from ridgeline.equality.calls.reach import Held, Reach, Role, Slot, reach
from ridgeline.harness.usercode.workload import Workload

MOST_BYTES = 2**30
READ_BYTES = 2**31
PART_BYTES = 2**22
"""All tensors up to READ_BYTES together are read whole to see whether they changed, the others by
PART_BYTES each: 10 GB of weights would take 10 s each time."""
_SCALARS = (bool, int, float, str)


class Known(Struct, frozen=True, kw_only=True, eq=False):
    """One tensor's content as it was."""

    name: str
    role: Role | str
    shape: tuple[int, ...]
    dtype: str
    digest: int
    storage: int
    before: torch.Tensor | None
    """Looks into the kept copy; None where there was no room for one."""


class Changed(Struct, frozen=True, kw_only=True, eq=False):
    """A tensor that the check calls changed."""

    name: str
    role: str
    """As in `reach`, or "gradient"."""
    before: Leaf | None
    after: Leaf


class Keeping:
    """Taken before anything runs. `restore` may be called any number of times."""

    def __init__(self, workload: Workload, most_bytes: int = MOST_BYTES) -> None:
        self.reach: Reach = reach(workload)
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._aliases: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._moving: set[int] = set()
        """Storages that calls change, as far as is known: all, until calls have been made."""
        self._left = most_bytes
        self._unread_bytes = READ_BYTES
        self.known: dict[str, Known] = {}
        self.left_out: list[str] = []
        """Tensors too many to keep copies of."""
        self.made: list[str] = []
        """Tensors that calls made and kept: caches, workspaces."""
        self.graphs_captured = False
        """Set where a call captured a CUDA graph: it goes on writing to the gradients and optimizer
        state of its first call, so those are emptied and not taken away."""
        # Inputs first: they are small, and what else is kept helps nobody without them.
        for role in ("declared", "captured", "buffer", "optimizer", "parameter"):
            for held in self.reach.named(role):
                self._keep(held)
        self._slots = [(slot, slot.read()) for slot in self.reach.slots if _is_kept(slot.read())]
        self._optimizers = [_Optimizer(o) for o in self.reach.optimizers]
        self._generators = [(g, _generator_state(g)) for g in self.reach.generators]
        self._keepers: list[tuple[Any, Any]] = []
        for keeper in self.reach.keepers:
            with contextlib.suppress(Exception):
                self._keepers.append((keeper, copy.deepcopy(keeper.state_dict())))

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a copy of the tensor's content is kept."""
        return tensor.untyped_storage()._cdata in self._storages

    def touch(self, tensor: torch.Tensor) -> None:
        """Somebody is about to change it."""
        self._moving.add(tensor.untyped_storage()._cdata)

    def restore(self, everything: bool = False) -> None:
        """Contents, gradients and bindings as they were. What a first call made for good (a cache,
        a compiled function, a captured graph) stays: taking it away would make every call cold."""
        with torch.no_grad():
            for tensor, alias in self._aliases:
                if tensor.untyped_storage()._cdata != alias.untyped_storage()._cdata:
                    tensor.data = alias
            for key, (live, kept) in self._storages.items():
                wanted = everything or key in self._moving
                if wanted and live.nbytes() == kept.nbytes():
                    _bytes(live).copy_(_bytes(kept))
            for tensor, gradient in self._gradients:
                if gradient is None and tensor.grad is not None and self.graphs_captured:
                    tensor.grad.zero_()
                else:
                    tensor.grad = gradient
        for slot, value in self._slots:
            _put_back(slot, value)
        for optimizer in self._optimizers:
            optimizer.restore(emptied=self.graphs_captured)
        for generator, state in self._generators:
            _set_generator_state(generator, state)
        for keeper, state in self._keepers:
            with contextlib.suppress(Exception):
                keeper.load_state_dict(copy.deepcopy(state))

    def changed(self, workload: Workload, room: Room) -> tuple[Changed, ...]:
        """Every tensor whose content is not what it was, in the order they are found. Gradients
        count from nothing; what is new otherwise (a cache, a workspace) changed nothing."""
        found: list[Changed] = []
        self._moving, self._unread_bytes = set(), READ_BYTES
        for name, role, tensor in _with_gradients(reach(workload)):
            known = self.known.get(name)
            if known is None and role != "gradient":
                self.made += [name] if role in ("captured", "buffer") else []
                continue
            if known is not None and known.digest == self._digest(tensor):
                continue
            if tensor.layout is torch.strided:
                self.touch(tensor)
            if known is not None:
                self._moving.add(known.storage)  # another one where the name was bound anew
            zeros = torch.zeros(1, dtype=tensor.dtype, device=tensor.device)
            before = known.before if known is not None else zeros.expand(tensor.shape)
            found.append(
                Changed(
                    name=name,
                    role=role,
                    before=None if before is None else leaf_of(name, before, room),
                    after=leaf_of(name, tensor.detach(), room),
                )
            )
        return tuple(found)

    def _keep(self, held: Held) -> None:
        tensor = held.tensor
        kept = self._keep_storage(tensor)
        self._aliases.append((tensor, tensor.detach()))
        self._know(held.name, held.role, tensor, kept)
        if tensor.is_leaf and tensor.requires_grad:
            self._gradients.append((tensor, tensor.grad))
            if tensor.grad is not None and tensor.grad.layout is torch.strided:
                kept = self._keep_storage(tensor.grad)
                self._know(f"{held.name}.grad", "gradient", tensor.grad, kept)

    def _digest(self, tensor: torch.Tensor) -> int:
        """Whole while that is quick, else by a part."""
        size = tensor.numel() * tensor.itemsize
        whole = size <= self._unread_bytes
        self._unread_bytes -= size if whole else 0
        return digest(tensor) if whole else digest(tensor, PART_BYTES)

    def _know(self, name: str, role: str, tensor: torch.Tensor, kept: bool) -> None:
        if not kept:
            self.left_out.append(name)
        self.known[name] = Known(
            name=name,
            role=role,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            digest=self._digest(tensor),
            storage=tensor.untyped_storage()._cdata,
            before=self._view(tensor) if kept else None,
        )

    def _keep_storage(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        if storage._cdata in self._storages:
            return True
        if storage.nbytes() > self._left:
            return False
        try:
            self._storages[storage._cdata] = (storage, storage.clone())
        except RuntimeError:  # a device that is full
            self._left = 0
            return False
        self._left -= storage.nbytes()
        self._moving.add(storage._cdata)
        return True

    def _view(self, tensor: torch.Tensor) -> torch.Tensor:
        _, kept = self._storages[tensor.untyped_storage()._cdata]
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(kept, tensor.storage_offset(), tensor.shape, tensor.stride())


def _with_gradients(found: Reach) -> Iterator[tuple[str, str, torch.Tensor]]:
    for held in found.held:
        yield held.name, held.role, held.tensor
        gradient = held.tensor.grad if held.tensor.is_leaf else None
        if gradient is not None:
            yield f"{held.name}.grad", "gradient", gradient


class _Optimizer:
    """An optimizer makes its state in its first step: without it again, the first step is again
    the first."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {p: dict(values) for p, values in optimizer.state.items()}
        self._groups = [
            {k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups
        ]

    def restore(self, emptied: bool) -> None:
        # The tensors in it were found as "optimizer" and their contents are already back.
        if emptied and not self._state:
            for values in self._optimizer.state.values():
                for value in values.values():
                    if isinstance(value, torch.Tensor):
                        value.zero_()
            return
        self._optimizer.state.clear()
        for parameter, values in self._state.items():
            self._optimizer.state[parameter] = dict(values)
        for group, kept in zip(self._optimizer.param_groups, self._groups, strict=False):
            group.update(kept)


def _is_kept(value: Any) -> bool:
    return isinstance(value, (*_SCALARS, torch.Tensor))


def _put_back(slot: Slot, value: Any) -> None:
    now = slot.read()
    if now is value:
        return
    # A counter goes back, and a tensor in another's place; what replaced nothing stays.
    if isinstance(value, torch.Tensor) or isinstance(now, _SCALARS):
        with contextlib.suppress(Exception):
            slot.write(value)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return copy.deepcopy(generator.bit_generator.state)
    return generator.get_state()


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)

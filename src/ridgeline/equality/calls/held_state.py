"""Finds the tensors that a workload can reach, without running it, and saves and restores them.

These are its inputs, what its code closes over, its defaults, what a method is bound to, parameters
and buffers of modules, the state of optimizers, the globals that its code names, and whatever the
functions of the user's own files reach from there. Data loaders and libraries are not searched.
"""

import contextlib
import copy
import functools
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Literal

import numpy as np
import torch
from msgspec import Struct

from ridgeline.equality.calls.outputs import ElementBudget, Leaf, leaf_of
from ridgeline.harness.usercode.workload import Workload

Role = Literal["declared", "captured", "parameter", "buffer", "optimizer"]
MAX_DEPTH = 8
MAX_VISITS = 50_000
MAX_LIST_ITEMS = 10_000
"""Items followed in one list: a data set of millions is not state."""
_LIBRARIES = tuple(
    {sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib")} | {"<frozen"}
)
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, torch.dtype, torch.device,
          torch.Size)  # fmt: skip


class Held(Struct, frozen=True, kw_only=True, eq=False):
    """A reachable tensor and its name."""

    name: str
    role: Role
    tensor: torch.Tensor


class Slot(Struct, frozen=True, eq=False):
    """A place that a call may bind to another object; read and write allow restoring it."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


class Reach:
    """Everything that is reachable, each object once."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.slots: list[Slot] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.generators: list[torch.Generator | np.random.Generator] = []
        self.keepers: list[Any] = []
        """Schedulers, scalers: objects with `state_dict` and `load_state_dict`."""
        self.unread: list[str] = []
        """Names of tensors whose kind is not followed."""
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # an id is unique only while its object lives
        self._visits = 0

    def named(self, *roles: Role) -> list[Held]:
        return [held for held in self.held if held.role in roles]

    def visit(self, name: str, value: Any, role: Role = "captured", depth: int = 0) -> None:
        if isinstance(value, _ATOMS) or depth > MAX_DEPTH or self._visits >= MAX_VISITS:
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        self._visits += 1
        for kinds, follow in _FOLLOW:
            if isinstance(value, kinds):
                try:
                    follow(self, name, value, role, depth)
                except Exception:  # a user's class may raise whenever it is inspected
                    self.unread.append(name)
                return
        wrapped = inspect.getattr_static(value, "__wrapped__", None)
        if wrapped is not None:
            self.visit(name, wrapped, role, depth + 1)
        if _is_users(type(value)) or isinstance(value, _KNOWN):
            self._attributes(name, value, role, depth)

    def _tensor(self, name: str, value: torch.Tensor, role: Role, depth: int) -> None:
        if role == "captured" and value.is_leaf and value.requires_grad:
            role = "parameter"  # it is trained
        plain = type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        if not plain or value.layout is not torch.strided or value.is_quantized or value.is_meta:
            self.unread.append(name)
            return
        self.held.append(Held(name=name, role=role, tensor=value))

    def _array(self, name: str, value: Any, role: Role, depth: int) -> None:
        try:
            if not value.flags.writeable:
                raise ValueError("a tensor would let it be written to")
            self.held.append(Held(name=name, role=role, tensor=torch.from_numpy(value)))
        except (TypeError, ValueError):  # text, objects, negative strides
            self.unread.append(name)

    def _module(self, name: str, value: torch.nn.Module, role: Role, depth: int) -> None:
        prefix = f"{name}." if name else ""
        for path, parameter in value.named_parameters():
            self.visit(prefix + _program_name(path), parameter, "parameter", depth)
        for path, buffer in value.named_buffers():
            self.visit(prefix + _program_name(path), buffer, "buffer", depth)
        for path, module in value.named_modules():
            if isinstance(module, torch.jit.ScriptModule):  # its attributes live in C++
                continue
            self._seen.add(id(module))
            inner = prefix + _program_name(path) if path else name
            for table in (module._buffers, module._parameters):
                self._slots(inner, table)
            own = {k: v for k, v in vars(module).items() if not _is_module_internal(k)}
            self._slots(inner, vars(module), own)
            for key, item in own.items():
                self.visit(f"{inner}.{key}", item, "captured", depth + 1)

    def _optimizer(self, name: str, value: torch.optim.Optimizer, role: Role, depth: int) -> None:
        self.optimizers.append(value)
        order = 0
        for group in value.param_groups:
            for parameter in group["params"]:
                self.visit(f"{name}.params[{order}]", parameter, "parameter", depth)
                for key, item in value.state.get(parameter, {}).items():
                    self.visit(f"{name}.state[{order}].{key}", item, "optimizer", depth + 1)
                order += 1

    def _function(self, name: str, value: FunctionType, role: Role, depth: int) -> None:
        for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self.slots.append(_cell_slot(key, cell))
            self.visit(key, content, "captured", depth + 1)
        for position, item in enumerate(value.__defaults__ or ()):
            count = value.__code__.co_argcount
            argument = count - len(value.__defaults__ or ()) + position
            self.visit(value.__code__.co_varnames[argument], item, "captured", depth + 1)
        for key, item in (value.__kwdefaults__ or {}).items():
            self.visit(key, item, "captured", depth + 1)
        wrapped = getattr(value, "_torchdynamo_orig_callable", None)
        if wrapped is None:
            wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:
            self.visit(name, wrapped, role, depth)
        if _is_users(value):
            self._globals(value, depth)

    def _globals(self, function: FunctionType, depth: int) -> None:
        names = _names(function.__code__)
        for key in names:
            if key not in function.__globals__:
                continue
            value = function.__globals__[key]
            if isinstance(value, ModuleType):
                if _is_users(value):
                    for inner in names:
                        if inner in vars(value):
                            self.visit(f"{key}.{inner}", vars(value)[inner], depth=depth + 1)
                continue
            self._slots("", function.__globals__, {key: value})
            self.visit(key, value, "captured", depth + 1)

    def _method(self, name: str, value: MethodType, role: Role, depth: int) -> None:
        self.visit("self", value.__self__, "captured", depth + 1)
        self.visit(name, value.__func__, role, depth + 1)

    def _partial(self, name: str, value: Any, role: Role, depth: int) -> None:
        for position, item in enumerate(value.args):
            self.visit(f"args[{position}]", item, role, depth + 1)
        for key, item in value.keywords.items():
            self.visit(key, item, role, depth + 1)
        self.visit(name, value.func, role, depth + 1)

    def _mapping(self, name: str, value: Any, role: Role, depth: int) -> None:
        for key, item in list(value.items()):
            self.visit(f"{name}[{key!r}]", item, role, depth + 1)

    def _sequence(self, name: str, value: Any, role: Role, depth: int) -> None:
        for position, item in enumerate(islice(value, MAX_LIST_ITEMS)):
            self.visit(f"{name}[{position}]", item, role, depth + 1)

    def _generator(self, name: str, value: Any, role: Role, depth: int) -> None:
        self.generators.append(value)

    def _ignored(self, name: str, value: Any, role: Role, depth: int) -> None:
        return

    def _attributes(self, name: str, value: Any, role: Role, depth: int) -> None:
        if isinstance(value, _KNOWN):
            self.keepers.append(value)
        own = dict(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for key in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, key) and not key.startswith("__"):
                    own[key] = getattr(value, key)
        if hasattr(value, "__dict__"):
            self._slots(name, vars(value))
        for key, item in own.items():
            self.visit(f"{name}.{key}" if name else key, item, role, depth + 1)
        call = inspect.getattr_static(type(value), "__call__", None)
        if isinstance(call, FunctionType):
            self.visit(name, call, role, depth + 1)

    def _slots(
        self, prefix: str, table: dict[str, Any], own: Mapping[str, Any] | None = None
    ) -> None:
        for key in list(table if own is None else own):
            self.slots.append(_table_slot(f"{prefix}.{key}" if prefix else key, table, key))


_FOLLOW: tuple[tuple[Any, Callable[..., None]], ...] = (
    (torch.Tensor, Reach._tensor),
    (np.ndarray, Reach._array),
    (torch.nn.Module, Reach._module),
    (torch.optim.Optimizer, Reach._optimizer),
    (FunctionType, Reach._function),
    (MethodType, Reach._method),
    (functools.partial, Reach._partial),
    ((torch.Generator, np.random.Generator), Reach._generator),
    (Mapping, Reach._mapping),
    ((list, tuple, set, frozenset), Reach._sequence),
    ((ModuleType, torch.utils.data.DataLoader, torch.utils.data.Dataset), Reach._ignored),
)
_KNOWN = (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)


def reach(workload: Workload) -> Reach:
    """Return what the workload can reach now."""
    reached = Reach()
    for position, item in enumerate(workload.args):
        reached.visit(f"input {position}", item, "declared")
    for key, item in workload.kwargs.items():
        reached.visit(f"input {key!r}", item, "declared")
    reached.visit("", workload.function)
    return reached


def reachable(workload: Workload) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of everything a workload holds, gradients included."""
    for held in reach(workload).held:
        yield held.name, held.tensor
        if held.tensor.is_leaf and held.tensor.grad is not None:
            yield f"{held.name}.grad", held.tensor.grad


def _names(code: CodeType) -> tuple[str, ...]:
    """Return every global and attribute name in a function, including functions inside it."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= dict.fromkeys(_names(constant))
    return tuple(names)


def _is_users(value: Any) -> bool:
    """Return whether code, a class or a module is the user's own, not of a library or of ours."""
    if isinstance(value, FunctionType):
        path = value.__code__.co_filename
    else:
        module = value if isinstance(value, ModuleType) else sys.modules.get(value.__module__)
        if module is None:
            return not isinstance(value, ModuleType) and value.__module__ != "builtins"
        if module.__name__ == "__main__":
            return True
        path = getattr(module, "__file__", None) or "<frozen"
    return not path.startswith(_LIBRARIES)


_MODULE_INTERNALS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


def _is_module_internal(key: str) -> bool:
    """Return whether this is an attribute of nn.Module itself: tables, hooks, the compiled call."""
    return (
        key in _MODULE_INTERNALS
        or key.endswith("_hooks")
        or "_hooks_" in key
        or "_call_impl" in key
    )


def _program_name(path: str) -> str:
    """Remove the level that torch.compile adds to names."""
    return path.replace("_orig_mod.", "")


def _cell_slot(name: str, cell: Any) -> Slot:
    def write(value: Any) -> None:
        cell.cell_contents = value

    return Slot(name, lambda: cell.cell_contents, write)


def _table_slot(name: str, table: dict[str, Any], key: str) -> Slot:
    def write(value: Any) -> None:
        table[key] = value

    return Slot(name, lambda: table.get(key), write)


MAX_KEPT_BYTES = 2**30
MAX_WHOLE_BYTES = 2**31
PARTIAL_BYTES = 2**22
"""All tensors up to MAX_WHOLE_BYTES together are read whole to see whether they changed, further
ones by PARTIAL_BYTES each: reading 10 GB of weights would take 10 s each time."""
_SCALARS = (bool, int, float, str)


class KeptTensor(Struct, frozen=True, kw_only=True, eq=False):
    """The content of one tensor before the calls."""

    name: str
    role: Role | str
    shape: tuple[int, ...]
    dtype: str
    digest: int
    storage: int
    before: torch.Tensor | None
    """A view of the saved copy; None if there was no room for one."""


class Changed(Struct, frozen=True, kw_only=True, eq=False):
    """A tensor that the check calls changed."""

    name: str
    role: str
    """One of the roles that `reach` names, or "gradient"."""
    before: Leaf | None
    after: Leaf


class SavedState:
    """A saved state, taken before anything runs. `restore` may be called any number of times."""

    def __init__(self, workload: Workload, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self.reach: Reach = reach(workload)
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._aliases: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._moving: set[int] = set()
        """Storages that calls change, as far as is known: all, until calls have been made."""
        self._bytes_left = max_bytes
        self._unread_bytes = MAX_WHOLE_BYTES
        self.contents: dict[str, KeptTensor] = {}
        self.too_large: list[str] = []
        """Tensors that were too large to keep a copy of."""
        self.made: list[str] = []
        """Tensors that calls made and kept: caches, workspaces."""
        self.graphs_captured = False
        """Whether a call captured a CUDA graph, which goes on writing to the gradients and
        optimizer state of its first call: those are then zeroed and not removed."""
        # Inputs come first: they are small, and the other copies are useless without them.
        for role in ("declared", "captured", "buffer", "optimizer", "parameter"):
            for held in self.reach.named(role):
                self._keep(held)
        self._slots = [
            (slot, slot.read()) for slot in self.reach.slots if _is_restorable(slot.read())
        ]
        self._optimizers = [_Optimizer(o) for o in self.reach.optimizers]
        self._generators = [(g, _generator_state(g)) for g in self.reach.generators]
        self._keepers: list[tuple[Any, Any]] = []
        for keeper in self.reach.keepers:
            with contextlib.suppress(Exception):
                self._keepers.append((keeper, copy.deepcopy(keeper.state_dict())))

    def has_copy(self, tensor: torch.Tensor) -> bool:
        """Return whether a copy of the tensor's content is kept."""
        return tensor.untyped_storage()._cdata in self._storages

    def mark_changing(self, tensor: torch.Tensor) -> None:
        """Note that the tensor is about to be changed."""
        self._moving.add(tensor.untyped_storage()._cdata)

    def restore(self, everything: bool = False) -> None:
        """Restore contents, gradients and bindings. What a first call makes once (a cache, a
        compiled function, a captured graph) stays: removing it would make every call cold."""
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
            _restore_slot(slot, value)
        for optimizer in self._optimizers:
            optimizer.restore(emptied=self.graphs_captured)
        for generator, state in self._generators:
            _set_generator_state(generator, state)
        for keeper, state in self._keepers:
            with contextlib.suppress(Exception):
                keeper.load_state_dict(copy.deepcopy(state))

    def changed(self, workload: Workload, room: ElementBudget) -> tuple[Changed, ...]:
        """Return every tensor whose content changed, in the order they are reached. A gradient that
        did not exist counts as zero; other new tensors (caches, workspaces) count as no change."""
        changes: list[Changed] = []
        self._moving, self._unread_bytes = set(), MAX_WHOLE_BYTES
        for name, role, tensor in _with_gradients(reach(workload)):
            content = self.contents.get(name)
            if content is None and role != "gradient":
                self.made += [name] if role in ("captured", "buffer") else []
                continue
            if content is not None and content.digest == self._digest(tensor):
                continue
            if tensor.layout is torch.strided:
                self.mark_changing(tensor)
            if content is not None:
                self._moving.add(content.storage)  # a different one if the name was bound anew
            zeros = torch.zeros(1, dtype=tensor.dtype, device=tensor.device)
            before = content.before if content is not None else zeros.expand(tensor.shape)
            changes.append(
                Changed(
                    name=name,
                    role=role,
                    before=None if before is None else leaf_of(name, before, room),
                    after=leaf_of(name, tensor.detach(), room),
                )
            )
        return tuple(changes)

    def _keep(self, held: Held) -> None:
        tensor = held.tensor
        kept = self._keep_storage(tensor)
        self._aliases.append((tensor, tensor.detach()))
        self._record(held.name, held.role, tensor, kept)
        if tensor.is_leaf and tensor.requires_grad:
            self._gradients.append((tensor, tensor.grad))
            if tensor.grad is not None and tensor.grad.layout is torch.strided:
                kept = self._keep_storage(tensor.grad)
                self._record(f"{held.name}.grad", "gradient", tensor.grad, kept)

    def _digest(self, tensor: torch.Tensor) -> int:
        """Digest the whole tensor while that is quick, later ones by a part."""
        size = tensor.numel() * tensor.itemsize
        whole = size <= self._unread_bytes
        self._unread_bytes -= size if whole else 0
        return digest(tensor) if whole else digest(tensor, PARTIAL_BYTES)

    def _record(self, name: str, role: str, tensor: torch.Tensor, kept: bool) -> None:
        if not kept:
            self.too_large.append(name)
        self.contents[name] = KeptTensor(
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
        if storage.nbytes() > self._bytes_left:
            return False
        try:
            self._storages[storage._cdata] = (storage, storage.clone())
        except RuntimeError:  # a device that is full
            self._bytes_left = 0
            return False
        self._bytes_left -= storage.nbytes()
        self._moving.add(storage._cdata)
        return True

    def _view(self, tensor: torch.Tensor) -> torch.Tensor:
        _, kept = self._storages[tensor.untyped_storage()._cdata]
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(kept, tensor.storage_offset(), tensor.shape, tensor.stride())


def _with_gradients(reached: Reach) -> Iterator[tuple[str, str, torch.Tensor]]:
    for held in reached.held:
        yield held.name, held.role, held.tensor
        gradient = held.tensor.grad if held.tensor.is_leaf else None
        if gradient is not None:
            yield f"{held.name}.grad", "gradient", gradient


class _Optimizer:
    """Saves an optimizer. It makes its state in its first step, so the state is removed again if
    there was none."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {p: dict(values) for p, values in optimizer.state.items()}
        self._groups = [
            {k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups
        ]

    def restore(self, emptied: bool) -> None:
        # The tensors in its state are among the reachable tensors and already restored.
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


def _is_restorable(value: Any) -> bool:
    return isinstance(value, (*_SCALARS, torch.Tensor))


def _restore_slot(slot: Slot, value: Any) -> None:
    now = slot.read()
    if now is value:
        return
    # Restore counters and replaced tensors; keep what was created where nothing was.
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


CHUNK_WORDS = 2**21
MAX_DIGEST_BYTES = 2**28
"""Bytes of a larger tensor that are read, in evenly spread chunks: reading 10 GB of weights twice
would take longer than most comparisons."""
_FACTOR = -7046029254386353131  # 2**64 over the golden ratio: odd, with bits spread evenly


def digest(tensor: torch.Tensor, whole_bytes: int = MAX_DIGEST_BYTES) -> int:
    """Return a number that is equal for equal content on any device. A changed or moved bit changes
    it."""
    flat = _bytes_of_tensor(tensor)
    step = max(1, flat.numel() // whole_bytes)
    total, chunk_bytes = flat.numel(), CHUNK_WORDS * 8
    result = total
    for start in range(0, flat.numel(), chunk_bytes * step):
        chunk = flat[start : start + chunk_bytes]
        spare = -chunk.numel() % 8
        if spare:
            chunk = torch.cat([chunk, chunk.new_zeros(spare)])
        words = chunk.clone().view(torch.int64)
        places = torch.arange(start, start + words.numel(), device=words.device) * 2 + 1
        # Wraps around: an integer sum is the same in any order.
        mixed = (words ^ (words >> 29)) * (places * _FACTOR)
        result = (result * 31 + int((mixed ^ (mixed >> 32)).sum())) % 2**63
    return result


def _bytes_of_tensor(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().reshape(-1).view(torch.uint8)

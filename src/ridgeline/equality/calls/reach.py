"""Tensors that a workload can get at, found without running it.

Its inputs, what its code closes over, its defaults, what a method is bound to, the parameters and
buffers of modules, the state of optimizers, and the globals that its code names, and so on from
there through the functions of the user's own files. Data loaders and libraries are left alone.
"""

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

from ridgeline.harness.usercode.workload import Workload

Role = Literal["declared", "captured", "parameter", "buffer", "optimizer"]
DEEPEST = 8
MOST_VISITS = 50_000
MOST_ITEMS = 10_000
"""Of one list; a data set of millions is no state."""
_LIBRARIES = tuple(
    {sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib")} | {"<frozen"}
)
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, torch.dtype, torch.device,
          torch.Size)  # fmt: skip


class Held(Struct, frozen=True, kw_only=True, eq=False):
    """A tensor and the name it goes by."""

    name: str
    role: Role
    tensor: torch.Tensor


class Slot(Struct, frozen=True, eq=False):
    """A place that a call may bind anew: read and write are what it takes to put it back."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


class Reach:
    """Everything found, each thing once."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.slots: list[Slot] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.generators: list[torch.Generator | np.random.Generator] = []
        self.keepers: list[Any] = []
        """Schedulers, scalers: objects that give and take their own state."""
        self.unread: list[str] = []
        """Tensors of kinds that are not followed, by name."""
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # an id stays taken only while its object lives
        self._visits = 0

    def named(self, *roles: Role) -> list[Held]:
        return [held for held in self.held if held.role in roles]

    def visit(self, name: str, value: Any, role: Role = "captured", depth: int = 0) -> None:
        if isinstance(value, _ATOMS) or depth > DEEPEST or self._visits >= MOST_VISITS:
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
                except Exception:  # whatever a user's class does when it is looked at
                    self.unread.append(name)
                return
        wrapped = inspect.getattr_static(value, "__wrapped__", None)
        if wrapped is not None:
            self.visit(name, wrapped, role, depth + 1)
        if _is_users(type(value)) or isinstance(value, _KNOWN):
            self._attributes(name, value, role, depth)

    def _tensor(self, name: str, value: torch.Tensor, role: Role, depth: int) -> None:
        if role == "captured" and value.is_leaf and value.requires_grad:
            role = "parameter"  # somebody trains it
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
            self.visit(prefix + _tidy(path), parameter, "parameter", depth)
        for path, buffer in value.named_buffers():
            self.visit(prefix + _tidy(path), buffer, "buffer", depth)
        for path, module in value.named_modules():
            if isinstance(module, torch.jit.ScriptModule):  # its attributes live in C++
                continue
            self._seen.add(id(module))
            inner = prefix + _tidy(path) if path else name
            for table in (module._buffers, module._parameters):
                self._slots(inner, table)
            own = {k: v for k, v in vars(module).items() if not _is_machinery(k)}
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
        for position, item in enumerate(islice(value, MOST_ITEMS)):
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
    """What the workload can get at now."""
    found = Reach()
    for position, item in enumerate(workload.args):
        found.visit(f"input {position}", item, "declared")
    for key, item in workload.kwargs.items():
        found.visit(f"input {key!r}", item, "declared")
    found.visit("", workload.function)
    return found


def reachable(workload: Workload) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of everything a workload holds, gradients included."""
    for held in reach(workload).held:
        yield held.name, held.tensor
        if held.tensor.is_leaf and held.tensor.grad is not None:
            yield f"{held.name}.grad", held.tensor.grad


def _names(code: CodeType) -> tuple[str, ...]:
    """Every global and attribute name in a function, the functions inside it included."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= dict.fromkeys(_names(constant))
    return tuple(found)


def _is_users(value: Any) -> bool:
    """Whether code, a class or a module is the user's own: not torch's, a library's or ours."""
    if isinstance(value, FunctionType):
        place = value.__code__.co_filename
    else:
        module = value if isinstance(value, ModuleType) else sys.modules.get(value.__module__)
        if module is None:
            return not isinstance(value, ModuleType) and value.__module__ != "builtins"
        if module.__name__ == "__main__":
            return True
        place = getattr(module, "__file__", None) or "<frozen"
    return not place.startswith(_LIBRARIES)


_MACHINERY = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


def _is_machinery(key: str) -> bool:
    """nn.Module's own attributes: tables, hooks, and the compiled call."""
    return key in _MACHINERY or key.endswith("_hooks") or "_hooks_" in key or "_call_impl" in key


def _tidy(path: str) -> str:
    """torch.compile adds a level that nobody wrote."""
    return path.replace("_orig_mod.", "")


def _cell_slot(name: str, cell: Any) -> Slot:
    def write(value: Any) -> None:
        cell.cell_contents = value

    return Slot(name, lambda: cell.cell_contents, write)


def _table_slot(name: str, table: dict[str, Any], key: str) -> Slot:
    def write(value: Any) -> None:
        table[key] = value

    return Slot(name, lambda: table.get(key), write)

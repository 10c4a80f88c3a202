"""What a call returned, however nested, as named values and the way to put them together again."""

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from msgspec import Struct

from ridgeline.equality.calls.leaf import Leaf, Room, leaf_of

DEEPEST = 12
MOST_LEAVES = 10_000
_ROW = 8  # a list of at least so many plain numbers is one row of numbers, not many values

Shape = Literal["leaf", "list", "tuple", "named", "dict", "object"]


class Node(Struct, frozen=True):
    """How values hang together, without the user's own classes: another process may lack them."""

    shape: Shape
    type: str
    keys: tuple[Any, ...]
    """Names of the children; a leaf's place in the row."""
    children: tuple["Node", ...] = ()


class Outputs(Struct, frozen=True, kw_only=True, eq=False):
    """A call's outputs, copied."""

    leaves: tuple[Leaf, ...]
    root: Node
    truncated: bool = False
    """There were more values than are kept."""

    @property
    def numbers(self) -> int:
        return sum(leaf.numbers for leaf in self.leaves)

    @property
    def whole(self) -> bool:
        return not self.truncated and all(leaf.whole for leaf in self.leaves)


class Fields(OrderedDict[str, Any]):
    """Reads by name, by attribute and by place, as a model's output does."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return (
            tuple(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)
        )


def outputs_of(value: Any, room: Room | None = None) -> Outputs:
    walk = _Walk(room or Room())
    root = walk.visit("", value, 0)
    return Outputs(leaves=tuple(walk.leaves), root=root, truncated=walk.truncated)


def live_tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors themselves, uncopied, each with its path."""
    walk = _Walk(None)
    walk.visit("", value, 0)
    yield from walk.tensors


def put_together(outputs: Outputs, leaves: tuple[Leaf, ...] | None = None) -> Any:
    """The outputs as a check may read them, from `leaves` in place of their own where given."""
    return _built(outputs.root, outputs.leaves if leaves is None else leaves)


def containers(value: Any) -> tuple[Shape, str, dict[Any, Any]] | None:
    """A container's shape, type and children; None for a value that holds none."""
    name = type(value).__name__
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "named", name, dict(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        shape: Shape = "list" if isinstance(value, list) else "tuple"
        return shape, name, dict(enumerate(value))
    if isinstance(value, Mapping):
        return "dict", name, dict(value.items())
    if isinstance(value, set | frozenset):
        return "list", name, dict(enumerate(sorted(value, key=repr)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return "object", name, fields
    if _is_leaf(value) or not getattr(value, "__dict__", None):
        return None
    # A cache of keys and values, say: whatever attributes it has, if tensors are among them.
    fields = {k: v for k, v in vars(value).items() if _holds_tensors(v, 0)}
    return ("object", name, fields) if fields else None


class _Walk:
    def __init__(self, room: Room | None) -> None:
        self.leaves: list[Leaf] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.truncated = False
        self._room = room
        self._seen: set[int] = set()

    def visit(self, path: str, value: Any, depth: int) -> Node:
        if isinstance(value, torch.Tensor):
            self.tensors.append((path, value))
            return self._leaf(path, value)
        row = _row(value)
        if row is not None:
            return self._leaf(path, row)
        found = containers(value) if depth < DEEPEST and id(value) not in self._seen else None
        if found is None:
            return self._leaf(path, value)
        self._seen.add(id(value))  # a container inside itself would never end
        shape, name, children = found
        nodes = tuple(
            self.visit(path + _step(shape, key), child, depth + 1)
            for key, child in children.items()
        )
        self._seen.discard(id(value))
        keys = tuple(k if isinstance(k, str | int | float | bool) else repr(k) for k in children)
        return Node(shape, name, keys, nodes)

    def _leaf(self, path: str, value: Any) -> Node:
        if self._room is None:
            return Node("leaf", "", ())
        if len(self.leaves) >= MOST_LEAVES:
            self.truncated = True
            return Node("leaf", "", (MOST_LEAVES - 1,))
        self.leaves.append(leaf_of(path, value, self._room))
        return Node("leaf", type(value).__name__, (len(self.leaves) - 1,))


def _step(shape: Shape, key: Any) -> str:
    return f"[{key!r}]" if shape in ("list", "tuple", "dict") else f".{key}"


def _row(value: Any) -> np.ndarray[Any, Any] | None:
    if type(value) not in (list, tuple) or len(value) < _ROW:
        return None
    kinds = {type(v) for v in value}
    if kinds <= {int, float} and all(-(2**63) <= v < 2**63 for v in value if type(v) is int):
        # As with one Python float: judged with float32's tolerance.
        return np.asarray(value, dtype=np.int64 if kinds == {int} else np.float32)
    return None


def _is_leaf(value: Any) -> bool:
    leaves = (str, bytes, int, float, complex, type(None), type, np.ndarray, np.generic,
              FunctionType, MethodType, ModuleType, torch.nn.Module, torch.dtype, torch.device,
              torch.Size, torch.Generator, torch.optim.Optimizer)  # fmt: skip
    return isinstance(value, leaves) or callable(value)


def _holds_tensors(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth > 4:
        return False
    if isinstance(value, list | tuple):
        return any(_holds_tensors(v, depth + 1) for v in value[:1000])
    if isinstance(value, Mapping):
        return any(_holds_tensors(v, depth + 1) for v in value.values())
    if _is_leaf(value):
        return False
    return any(_holds_tensors(v, depth + 1) for v in getattr(value, "__dict__", {}).values())


def _built(node: Node, leaves: tuple[Leaf, ...]) -> Any:
    if node.shape == "leaf":
        return _value(leaves[node.keys[0]])
    values = [_built(child, leaves) for child in node.children]
    if node.shape == "list":
        return values
    if node.shape == "tuple":
        return tuple(values)
    named = dict(zip(node.keys, values, strict=True))
    if node.shape == "dict":
        return named if node.type in ("dict", "OrderedDict", "defaultdict") else Fields(named)
    if node.shape == "named":
        return namedtuple(node.type, node.keys)(*values)
    return SimpleNamespace(**named)


def _value(leaf: Leaf) -> Any:
    if leaf.values is None:
        return leaf.text if leaf.kind == "text" else None
    if leaf.kind == "number":
        return leaf.values.item()
    if leaf.kind == "array":
        array = leaf.values.numpy()
        if leaf.type in ("list", "tuple"):
            return array.tolist()
        return array if leaf.type == "ndarray" else array[()]
    return leaf.values

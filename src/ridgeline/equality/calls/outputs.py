"""What a call returned, however nested, as named values and the way to put them together again."""

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace

Kind = Literal["tensor", "array", "number", "text", "nothing", "opaque"]

WHOLE_ELEMENTS = 2**24
"""A tensor up to this size (64 MiB of float32) is kept whole, a larger one by a sample."""
SAMPLED_ELEMENTS = 2**20
ALL_ELEMENTS = 2**26
"""Of one call (256 MiB of float32): what comes after them is kept by small samples."""
_SMALL_SAMPLE = 2**14


class Leaf(Struct, frozen=True, kw_only=True, eq=False):
    path: str
    """ "[0]['logits']"; "" where the whole output is one value."""
    kind: Kind
    type: str
    """The type's name: "Tensor", "ndarray", "float", "generator"."""
    dtype: str = ""
    device: str = ""
    layout: str = "strided"
    shape: tuple[int, ...] = ()
    values: torch.Tensor | None = None
    """On the CPU, in its own dtype: whole in its own shape, or the sampled elements in a row."""
    whole: bool = True
    nans: int = 0
    infinities: int = 0
    """Counted over all elements, sampled or not."""
    text: str = ""

    @property
    def numbers(self) -> int:
        return 0 if self.values is None else self.values.numel()

    @property
    def plain(self) -> bool:
        """A tensor without a mind of its own."""
        return self.kind != "tensor" or self.type in ("Tensor", "Parameter", "Buffer")


class Room:
    """How many elements of a call may still be kept."""

    def __init__(self, elements: int = ALL_ELEMENTS, each: int = WHOLE_ELEMENTS) -> None:
        self._left = elements
        self._each = each

    def keep(self, elements: int) -> int:
        """How many of a tensor's elements to keep: all where they fit."""
        allowed = elements if elements <= self._each else SAMPLED_ELEMENTS
        if allowed > self._left:
            allowed = min(elements, _SMALL_SAMPLE)
        self._left -= min(allowed, self._left)
        return allowed


def leaf_of(path: str, value: Any, room: Room) -> Leaf:
    """A copy of one value that is no container."""
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        return _of_tensor(path, value, room)
    if isinstance(value, np.ndarray | np.generic):
        return _of_array(path, value, room)
    if value is None:
        return Leaf(path=path, kind="nothing", type=name)
    if isinstance(value, bool | int | float | complex):
        return _of_number(path, value)
    if isinstance(value, str | bytes | torch.dtype | torch.device | Enum | PurePath):
        return Leaf(path=path, kind="text", type=name, text=repr(value)[:10_000])
    return Leaf(path=path, kind="opaque", type=name)


def _of_number(path: str, value: Any) -> Leaf:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return Leaf(path=path, kind="text", type="int", text=str(value)[:10_000])
    # A Python float is most often some tensor's .item(): it carries float32's precision at best,
    # so it is judged as that, though kept in full.
    exact = torch.float64 if isinstance(value, float) else None
    kept = torch.tensor(value, dtype=exact, device="cpu")
    dtype = "float32" if isinstance(value, float) else _name(kept.dtype)
    return Leaf(
        path=path, kind="number", type=type(value).__name__, dtype=dtype, values=kept,
        nans=int(kept.isnan().sum()), infinities=int(kept.isinf().sum()),
    )  # fmt: skip


def _of_array(path: str, value: Any, room: Room) -> Leaf:
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        return Leaf(path=path, kind="text", type="ndarray", text=repr(array)[:10_000])
    if array.dtype.name in ("longdouble", "clongdouble", "float128", "complex256"):
        array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    copied = torch.from_numpy(native.reshape(array.shape))
    return _kept(path, "array", type(value).__name__, copied, copied, room)


def _of_tensor(path: str, value: torch.Tensor, room: Room) -> Leaf:
    with torch.no_grad():
        return _kept(path, "tensor", type(value).__name__, value, _dense(value), room)


def _kept(
    path: str, kind: Kind, name: str, value: torch.Tensor, dense: torch.Tensor | None, room: Room
) -> Leaf:
    about = Leaf(
        path=path,
        kind=kind,
        type=name,
        dtype=_name(value.dtype),
        device=value.device.type,
        layout=str(value.layout).removeprefix("torch."),
        shape=_shape(value),
    )
    if dense is None or dense.is_meta:
        return about
    allowed = room.keep(dense.numel())
    whole = allowed >= dense.numel()
    flat = dense if whole else dense.reshape(-1)[sample(dense.numel(), allowed).to(dense.device)]
    values = flat.detach().to("cpu", copy=True).contiguous()
    nans, infinities = _not_finite(values if whole else dense)
    return replace(about, values=values, whole=whole, nans=nans, infinities=infinities)


def sample(elements: int, count: int) -> torch.Tensor:
    """Positions to keep: the same for any two tensors of one size, in whatever process."""
    generator = torch.Generator("cpu").manual_seed(elements)
    chosen = torch.randint(elements, (count,), generator=generator, device="cpu")
    chosen[0], chosen[-1] = 0, elements - 1
    return chosen.sort().values


def sampled_alike(one: Leaf, other: Leaf) -> tuple[Leaf, Leaf]:
    """Two leaves by the same elements, where one was kept whole and the other was not."""
    if one.whole == other.whole or one.shape != other.shape:
        return one, other
    if not one.whole:
        return tuple(reversed(sampled_alike(other, one)))  # type: ignore[return-value]
    if one.values is None or other.values is None or one.layout != "strided":
        return one, other
    chosen = sample(one.values.numel(), other.values.numel())
    return replace(one, values=one.values.reshape(-1)[chosen], whole=False), other


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """A strided tensor of its values; None where there is no telling."""
    tensor = tensor.detach()
    if type(tensor).__name__ == "DTensor":
        return tensor._local_tensor  # type: ignore[attr-defined, no-any-return]
    try:
        if tensor.is_nested:
            return torch.cat([part.reshape(-1) for part in tensor.unbind()])
        if tensor.is_quantized:
            return tensor.dequantize()
        if tensor.layout is not torch.strided:
            # Written out it may be far larger than memory; two equal ones can store other zeros.
            small = tensor.numel() <= WHOLE_ELEMENTS
            return tensor.to_dense() if small else tensor.coalesce().values()
        return tensor.resolve_conj().resolve_neg()
    except (RuntimeError, NotImplementedError):
        return None


def _not_finite(tensor: torch.Tensor) -> tuple[int, int]:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0, 0
    if tensor.itemsize == 1:  # float8 has no isnan of its own everywhere
        tensor = tensor.float()
    return int(tensor.isnan().sum()), int(tensor.isinf().sum())


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    if tensor.is_nested:
        return (tensor.size(0), -1)
    return tuple(tensor.shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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

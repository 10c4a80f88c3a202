"""The outputs of a call, however nested, as named values that can be put together again."""

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

MAX_WHOLE_ELEMENTS = 2**24
"""A tensor of up to this many elements (64 MiB of float32) is kept whole, a larger one sampled."""
SAMPLED_ELEMENTS = 2**20
MAX_CALL_ELEMENTS = 2**26
"""Elements kept of one call (256 MiB of float32): small samples are kept of what follows."""
SMALL_SAMPLE_ELEMENTS = 2**14


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
    """Both counted over all elements, sampled or not."""
    text: str = ""

    @property
    def numbers(self) -> int:
        return 0 if self.values is None else self.values.numel()

    @property
    def is_plain(self) -> bool:
        """Whether it is no tensor subclass, which might compute only when it is read."""
        return self.kind != "tensor" or self.type in ("Tensor", "Parameter", "Buffer")


class ElementBudget:
    """Counts how many elements of a call may still be kept."""

    def __init__(self, elements: int = MAX_CALL_ELEMENTS, each: int = MAX_WHOLE_ELEMENTS) -> None:
        self._left = elements
        self._each = each

    def keep(self, elements: int) -> int:
        """Return how many of a tensor's elements to keep: all if they fit."""
        allowed = elements if elements <= self._each else SAMPLED_ELEMENTS
        if allowed > self._left:
            allowed = min(elements, SMALL_SAMPLE_ELEMENTS)
        self._left -= min(allowed, self._left)
        return allowed


def leaf_of(path: str, value: Any, budget: ElementBudget) -> Leaf:
    """Return a copy of one value that is not a container."""
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        return _leaf_of_tensor(path, value, budget)
    if isinstance(value, np.ndarray | np.generic):
        return _leaf_of_array(path, value, budget)
    if value is None:
        return Leaf(path=path, kind="nothing", type=name)
    if isinstance(value, bool | int | float | complex):
        return _leaf_of_number(path, value)
    if isinstance(value, str | bytes | torch.dtype | torch.device | Enum | PurePath):
        return Leaf(path=path, kind="text", type=name, text=repr(value)[:10_000])
    return Leaf(path=path, kind="opaque", type=name)


def _leaf_of_number(path: str, value: Any) -> Leaf:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return Leaf(path=path, kind="text", type="int", text=str(value)[:10_000])
    # A Python float mostly comes from a tensor's .item() and has float32's precision at best, so it
    # is judged as float32, though kept in full.
    exact = torch.float64 if isinstance(value, float) else None
    kept = torch.tensor(value, dtype=exact, device="cpu")
    dtype = "float32" if isinstance(value, float) else _name(kept.dtype)
    return Leaf(
        path=path, kind="number", type=type(value).__name__, dtype=dtype, values=kept,
        nans=int(kept.isnan().sum()), infinities=int(kept.isinf().sum()),
    )  # fmt: skip


def _leaf_of_array(path: str, value: Any, budget: ElementBudget) -> Leaf:
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        return Leaf(path=path, kind="text", type="ndarray", text=repr(array)[:10_000])
    if array.dtype.name in ("longdouble", "clongdouble", "float128", "complex256"):
        array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    copied = torch.from_numpy(native.reshape(array.shape))
    return _sampled(path, "array", type(value).__name__, copied, copied, budget)


def _leaf_of_tensor(path: str, value: torch.Tensor, budget: ElementBudget) -> Leaf:
    with torch.no_grad():
        return _sampled(path, "tensor", type(value).__name__, value, _dense(value), budget)


def _sampled(
    path: str,
    kind: Kind,
    name: str,
    value: torch.Tensor,
    dense: torch.Tensor | None,
    budget: ElementBudget,
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
    allowed = budget.keep(dense.numel())
    whole = allowed >= dense.numel()
    flat = dense if whole else dense.reshape(-1)[sample(dense.numel(), allowed).to(dense.device)]
    values = flat.detach().to("cpu", copy=True).contiguous()
    nans, infinities = _not_finite(values if whole else dense)
    return replace(about, values=values, whole=whole, nans=nans, infinities=infinities)


def sample(elements: int, count: int) -> torch.Tensor:
    """Return the positions to keep: the same for any two tensors of one size, in any process."""
    generator = torch.Generator("cpu").manual_seed(elements)
    chosen = torch.randint(elements, (count,), generator=generator, device="cpu")
    chosen[0], chosen[-1] = 0, elements - 1
    return chosen.sort().values


def sampled_alike(one: Leaf, other: Leaf) -> tuple[Leaf, Leaf]:
    """Return two leaves with the same elements if one was kept whole and the other sampled."""
    if one.whole == other.whole or one.shape != other.shape:
        return one, other
    if not one.whole:
        return tuple(reversed(sampled_alike(other, one)))  # type: ignore[return-value]
    if one.values is None or other.values is None or one.layout != "strided":
        return one, other
    chosen = sample(one.values.numel(), other.values.numel())
    return replace(one, values=one.values.reshape(-1)[chosen], whole=False), other


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a strided tensor of its values; None if it has none."""
    tensor = tensor.detach()
    if type(tensor).__name__ == "DTensor":
        return tensor._local_tensor  # type: ignore[attr-defined, no-any-return]
    try:
        if tensor.is_nested:
            return torch.cat([part.reshape(-1) for part in tensor.unbind()])
        if tensor.is_quantized:
            return tensor.dequantize()
        if tensor.layout is not torch.strided:
            # Dense it may be far larger than memory; two equal tensors can store other zeros.
            small = tensor.numel() <= MAX_WHOLE_ELEMENTS
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


MAX_DEPTH = 12
MAX_LEAVES = 10_000
MIN_ROW_LENGTH = 8
"""A list of at least this many plain numbers is one row of numbers, not many values."""

Shape = Literal["leaf", "list", "tuple", "named", "dict", "object"]


class Node(Struct, frozen=True):
    """The structure of the outputs, without the user's classes, which another process may lack."""

    shape: Shape
    type: str
    keys: tuple[Any, ...]
    """Names of the children; for a leaf its index."""
    children: tuple["Node", ...] = ()


class Outputs(Struct, frozen=True, kw_only=True, eq=False):
    """A copy of a call's outputs."""

    leaves: tuple[Leaf, ...]
    root: Node
    truncated: bool = False
    """Whether there were more values than are kept."""

    @property
    def numbers(self) -> int:
        return sum(leaf.numbers for leaf in self.leaves)

    @property
    def whole(self) -> bool:
        return not self.truncated and all(leaf.whole for leaf in self.leaves)


class Fields(OrderedDict[str, Any]):
    """Gives access by name, attribute and index, as a model's output class does."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return (
            tuple(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)
        )


def outputs_of(value: Any, budget: ElementBudget | None = None) -> Outputs:
    walk = _Walk(budget or ElementBudget())
    root = walk.visit("", value, 0)
    return Outputs(leaves=tuple(walk.leaves), root=root, truncated=walk.truncated)


def live_tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors themselves, uncopied, each with its path."""
    walk = _Walk(None)
    walk.visit("", value, 0)
    yield from walk.tensors


def put_together(outputs: Outputs, leaves: tuple[Leaf, ...] | None = None) -> Any:
    """Return the outputs as a check can read them, with `leaves` instead of their own if given."""
    return _built(outputs.root, outputs.leaves if leaves is None else leaves)


def containers(value: Any) -> tuple[Shape, str, dict[Any, Any]] | None:
    """Return a container's shape, type and children; None for any other value."""
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
    # For example a cache of keys and values: all attributes, if there are tensors among them.
    fields = {k: v for k, v in vars(value).items() if _holds_tensors(v, 0)}
    return ("object", name, fields) if fields else None


class _Walk:
    def __init__(self, budget: ElementBudget | None) -> None:
        self.leaves: list[Leaf] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.truncated = False
        self._budget = budget
        self._seen: set[int] = set()

    def visit(self, path: str, value: Any, depth: int) -> Node:
        if isinstance(value, torch.Tensor):
            self.tensors.append((path, value))
            return self._leaf(path, value)
        row = _row(value)
        if row is not None:
            return self._leaf(path, row)
        container = containers(value) if depth < MAX_DEPTH and id(value) not in self._seen else None
        if container is None:
            return self._leaf(path, value)
        self._seen.add(id(value))  # a container inside itself would never end
        shape, name, children = container
        nodes = tuple(
            self.visit(path + _step(shape, key), child, depth + 1)
            for key, child in children.items()
        )
        self._seen.discard(id(value))
        keys = tuple(k if isinstance(k, str | int | float | bool) else repr(k) for k in children)
        return Node(shape, name, keys, nodes)

    def _leaf(self, path: str, value: Any) -> Node:
        if self._budget is None:
            return Node("leaf", "", ())
        if len(self.leaves) >= MAX_LEAVES:
            self.truncated = True
            return Node("leaf", "", (MAX_LEAVES - 1,))
        self.leaves.append(leaf_of(path, value, self._budget))
        return Node("leaf", type(value).__name__, (len(self.leaves) - 1,))


def _step(shape: Shape, key: Any) -> str:
    return f"[{key!r}]" if shape in ("list", "tuple", "dict") else f".{key}"


def _row(value: Any) -> np.ndarray[Any, Any] | None:
    if type(value) not in (list, tuple) or len(value) < MIN_ROW_LENGTH:
        return None
    kinds = {type(v) for v in value}
    if kinds <= {int, float} and all(-(2**63) <= v < 2**63 for v in value if type(v) is int):
        # Judged with float32's tolerance, as a single Python float is.
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

"""The operands of an operator: finding tensors in containers and objects, describing a call for the
formulas, and the bytes that a call moves."""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from ridgeline.cost.formulas import Call, Tensor, Work
from ridgeline.cost.formulas.call import ITEM_BYTES

MAX_SEARCH_DEPTH = 6
_LEAVES = (
    str, bytes, int, float, complex, bool, type(None), type, FunctionType, MethodType, ModuleType,
    torch.nn.Module, torch.dtype, torch.device, torch.Size, torch.Generator,
)  # fmt: skip


def nested_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in nested lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nested_tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from nested_tensors(item)


def reachable_tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield every tensor that can be reached from a value, also through attributes of objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, _LEAVES) or depth > MAX_SEARCH_DEPTH:
        return
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from reachable_tensors(item, depth + 1)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from reachable_tensors(item, depth + 1)
    else:
        for item in _attributes(value).values():
            yield from reachable_tensors(item, depth + 1)


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the value with `change` applied to its tensors, also in nested containers and
    dataclasses. Other values are returned as they are."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, _LEAVES):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(v, change) for v in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(v, change) for v in value)
    if isinstance(value, dict):
        changed = copy.copy(value)
        for key, item in value.items():
            changed[key] = map_tensors(item, change)
        return changed
    if dataclasses.is_dataclass(value):
        twin = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(twin, field.name, map_tensors(getattr(value, field.name), change))
        return twin
    return value


def _attributes(value: Any) -> dict[str, Any]:
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                attributes[name] = getattr(value, name)
    return attributes


_DTYPE_NAMES: dict[torch.dtype, str] = {}
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def dtype_name(dtype: torch.dtype) -> str:
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
        ITEM_BYTES.setdefault(name, dtype.itemsize)
    return name


def describe(tensor: torch.Tensor) -> Tensor:
    if tensor.is_nested:
        raise TypeError("a nested tensor has no single shape")
    stored = None
    if tensor.layout is not torch.strided:
        stored = stored_parts(tensor)[0].numel()
    return Tensor(tuple(tensor.shape), dtype_name(tensor.dtype), stored)


def stored_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the dense tensors with the data of a tensor, values first. For a strided tensor this
    is the tensor itself."""
    if is_distributed(tensor):
        return (tensor._local_tensor,)  # type: ignore[attr-defined]
    layout = tensor.layout
    if tensor.is_nested:
        return ()
    if layout is torch.strided:
        return (tensor,)
    if layout is torch.sparse_coo:
        return tensor._values(), tensor._indices()
    if layout in _COMPRESSED:
        rows = layout in (torch.sparse_csr, torch.sparse_bsr)
        outer = tensor.crow_indices() if rows else tensor.ccol_indices()
        inner = tensor.col_indices() if rows else tensor.row_indices()
        return tensor.values(), outer, inner
    return (tensor,)


def is_distributed(tensor: torch.Tensor) -> bool:
    """Return whether this is a DTensor. The test does not import torch.distributed."""
    return type(tensor).__name__ == "DTensor"


def _value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return describe(value)
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    if isinstance(value, torch.ScriptObject) and hasattr(value, "unpack"):
        return describe(value.unpack()[0])  # a quantised weight is passed packed
    return value


def operator_name(func: Any) -> str:
    """Return the name of an operator: "aten::addmm" for an overload, "higher_order::flex_attention"
    for a higher-order operator."""
    schema = getattr(func, "_schema", None)
    if schema is not None:
        return str(schema.name)
    return f"higher_order::{getattr(func, '__name__', str(func))}"


def as_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Call:
    """Describe the call of an operator for the formulas."""
    schema = getattr(func, "_schema", None)
    outputs = tuple(describe(t) for t in nested_tensors(out))
    values = [_value(a) for a in args]
    if schema is None:
        return Call(operator_name(func), tuple(values), (), outputs)
    names = [a.name for a in schema.arguments[: len(args)]]
    for argument in schema.arguments[len(args) :]:
        names.append(argument.name)
        given = argument.name in kwargs
        values.append(_value(kwargs[argument.name]) if given else argument.default_value)
    return Call(str(schema.name), tuple(values), tuple(names), outputs)


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that is equal for tensors that share a storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse and nested layouts have none
        return id(tensor)


_WRITES_WITHOUT_READING = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_",
                           "aten::uniform_", "aten::bernoulli_", "aten::random_")  # fmt: skip
_TOUCHES_NOTHING = ("aten::empty", "aten::new_empty", "aten::detach", "aten::lift", "aten::resize_",
                    "aten::set_", "aten::record_stream", "aten::sym_")  # fmt: skip


def moved_bytes(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, work: Work | None
) -> int:
    """Return the bytes that a call reads and writes. A view moves nothing; what is written in place
    counts as written."""
    if name.startswith(_TOUCHES_NOTHING):
        return 0
    destinations = {id(t) for t in nested_tensors(kwargs.get("out"))}
    inputs = [t for t in nested_tensors((args, kwargs)) if id(t) not in destinations]
    outputs = list(nested_tensors(out))
    in_place = name.endswith("_") and not name.endswith("__")
    if outputs and not in_place and not destinations and _are_views(inputs, outputs):
        return 0
    if not outputs:  # operators on lists in place return nothing
        outputs = _mutated(func, args, kwargs)
    written = _unique_bytes(outputs)
    read = None
    if work is not None:
        read = work.read_bytes
        written = written if work.written_bytes is None else work.written_bytes
    if read is None:
        read = _unique_bytes(inputs[1:] if name in _WRITES_WITHOUT_READING else inputs)
    return read + written


def _mutated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return []
    written: list[torch.Tensor] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            written += nested_tensors(value)
    return written


def _unique_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that the tensors show. Several views of one storage count at most as that
    storage."""
    touched: dict[int, int] = {}
    capacity: dict[int, int] = {}
    for tensor in tensors:
        for part in stored_parts(tensor):
            key = storage_key(part)
            touched[key] = touched.get(key, 0) + _touched_bytes(part)
            capacity[key] = _capacity(part)
    return sum(min(size, capacity[key]) for key, size in touched.items())


def stored_bytes(*tensors: torch.Tensor) -> int:
    """Return the bytes that these tensors take in memory; each storage counts once."""
    parts = {storage_key(part): part for tensor in tensors for part in stored_parts(tensor)}
    return sum(_capacity(part) for part in parts.values())


def _touched_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's distinct elements; an expanded dimension has one element."""
    if tensor.is_nested:
        return tensor.numel() * tensor.itemsize
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size == 0:
            return 0
        elements *= size if stride else 1
    return elements * tensor.itemsize


def _capacity(tensor: torch.Tensor) -> int:
    try:
        return max(tensor.untyped_storage().nbytes(), tensor.itemsize)
    except (NotImplementedError, RuntimeError):
        return tensor.numel() * tensor.itemsize


def _are_views(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    owners = {storage_key(t) for t in inputs}
    return bool(owners) and all(storage_key(t) in owners for t in outputs)

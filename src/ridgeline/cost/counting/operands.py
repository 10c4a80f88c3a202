"""Torch's arguments as formulas see them: shapes, dtypes, and what a sparse tensor stores."""

from typing import Any

import torch

from ridgeline.cost.counting.values import contained
from ridgeline.cost.formulas import Call, Tensor
from ridgeline.cost.formulas.call import ITEM_BYTES

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
        raise TypeError("a nested tensor has no one shape")
    stored = None
    if tensor.layout is not torch.strided:
        stored = stored_parts(tensor)[0].numel()
    return Tensor(tuple(tensor.shape), dtype_name(tensor.dtype), stored)


def stored_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors that hold its data, values first; itself where it is strided."""
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
    """A DTensor, told without importing torch.distributed."""
    return type(tensor).__name__ == "DTensor"


def _value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return describe(value)
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    if isinstance(value, torch.ScriptObject) and hasattr(value, "unpack"):
        return describe(value.unpack()[0])  # a quantised weight travels packed
    return value


def operator_name(func: Any) -> str:
    """ "aten::addmm" of an operator overload, "higher_order::flex_attention" of a HOP."""
    schema = getattr(func, "_schema", None)
    if schema is not None:
        return str(schema.name)
    return f"higher_order::{getattr(func, '__name__', str(func))}"


def as_call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Call:
    schema = getattr(func, "_schema", None)
    outputs = tuple(describe(t) for t in contained(out))
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
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse and nested layouts have none
        return id(tensor)

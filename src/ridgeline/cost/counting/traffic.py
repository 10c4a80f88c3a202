"""The bytes a call must move at least: each input read once, each output written once."""

from collections.abc import Iterable
from typing import Any

import torch

from ridgeline.cost.counting.operands import storage_key, stored_parts
from ridgeline.cost.counting.values import contained
from ridgeline.cost.formulas import Work

_WRITES_WITHOUT_READING = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_",
                           "aten::uniform_", "aten::bernoulli_", "aten::random_")  # fmt: skip
_TOUCHES_NOTHING = ("aten::empty", "aten::new_empty", "aten::detach", "aten::lift", "aten::resize_",
                    "aten::set_", "aten::record_stream", "aten::sym_")  # fmt: skip


def moved_bytes(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, work: Work | None
) -> int:
    """A view moves nothing; what is written in place counts as written."""
    if name.startswith(_TOUCHES_NOTHING):
        return 0
    destinations = {id(t) for t in contained(kwargs.get("out"))}
    inputs = [t for t in contained((args, kwargs)) if id(t) not in destinations]
    outputs = list(contained(out))
    in_place = name.endswith("_") and not name.endswith("__")
    if outputs and not in_place and not destinations and _are_views(inputs, outputs):
        return 0
    if not outputs:  # list operators in place return nothing
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
    found: list[torch.Tensor] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += contained(value)
    return found


def _unique_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Two views of one storage are never read as more than that storage."""
    touched: dict[int, int] = {}
    capacity: dict[int, int] = {}
    for tensor in tensors:
        for part in stored_parts(tensor):
            key = storage_key(part)
            touched[key] = touched.get(key, 0) + _touched_bytes(part)
            capacity[key] = _capacity(part)
    return sum(min(size, capacity[key]) for key, size in touched.items())


def stored_bytes(*tensors: torch.Tensor) -> int:
    """What these tensors take in memory, each storage once."""
    parts = {storage_key(part): part for tensor in tensors for part in stored_parts(tensor)}
    return sum(_capacity(part) for part in parts.values())


def _touched_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements a tensor shows: an expanded dimension is one element deep."""
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

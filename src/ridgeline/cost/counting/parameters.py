"""A model's parameters and buffers, each storage once."""

from collections.abc import Iterator

import torch
from torch.nn.parameter import is_lazy

from ridgeline.cost.counting.operands import dtype_name, storage_key, stored_parts
from ridgeline.records.cost import Parameters


def named_unique(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Each parameter object once, under its first name."""
    yield from model.named_parameters(remove_duplicate=True)


def _view_key(tensor: torch.Tensor) -> tuple[int, int, int]:
    part = next(iter(stored_parts(tensor)), tensor)
    return storage_key(part), int(part.storage_offset()), tensor.numel()


def count_parameters(model: torch.nn.Module) -> Parameters:
    seen: set[tuple[int, int, int]] = set()
    total = trainable = tied = parameter_bytes = 0
    by_dtype: dict[str, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        if is_lazy(parameter):
            continue
        key = _view_key(parameter)
        if parameter.numel() and key in seen:
            tied += parameter.numel()
            continue
        seen.add(key)
        total += parameter.numel()
        trainable += parameter.numel() if parameter.requires_grad else 0
        parameter_bytes += sum(t.numel() * t.itemsize for t in stored_parts(parameter))
        name = dtype_name(parameter.dtype)
        by_dtype[name] = by_dtype.get(name, 0) + parameter.numel()
    for packed in packed_weights(model):
        total += packed.numel()
        parameter_bytes += packed.numel() * packed.itemsize
        name = dtype_name(packed.dtype)
        by_dtype[name] = by_dtype.get(name, 0) + packed.numel()
    buffers = buffer_bytes = 0
    for _, buffer in model.named_buffers(remove_duplicate=True):
        if buffer is None or is_lazy(buffer) or (buffer.numel() and _view_key(buffer) in seen):
            continue
        seen.add(_view_key(buffer))
        buffers += buffer.numel()
        buffer_bytes += sum(t.numel() * t.itemsize for t in stored_parts(buffer))
    return Parameters(
        total=total,
        trainable=trainable,
        frozen=total - trainable,
        tied=tied,
        buffers=buffers,
        parameter_bytes=parameter_bytes,
        buffer_bytes=buffer_bytes,
        by_dtype=by_dtype,
    )


def packed_weights(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Quantised layers keep weight and bias out of `parameters()`, in an object of their own."""
    for module in model.modules():
        unpack = getattr(module, "_weight_bias", None)
        if callable(unpack) and not list(module.parameters()) and not list(module.children()):
            yield from (t for t in unpack() if isinstance(t, torch.Tensor))


def count_by_module(model: torch.nn.Module) -> dict[str, int]:
    """Parameters of each module and its children, shared ones once within it."""
    return {
        path: sum(p.numel() for p in module.parameters() if not is_lazy(p))
        for path, module in model.named_modules()
    }

"""Inputs from what the command line says: `32x3x224x224`, `8x1024:int64`, `mask=8x1024:bool`.

Values do not matter for cost, but they must be legal: integers stay below the smallest embedding
table, so that they are valid wherever they are looked up.
"""

import math
import re
from typing import Any, Literal

import torch
from msgspec import Struct

from ridgeline.cost.study.room import free_bytes
from ridgeline.errors import UsageError

Dimension = Literal["batch", "seq"]

_DTYPES = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16,
    "bfloat16": torch.bfloat16, "int64": torch.int64, "int32": torch.int32, "int16": torch.int16,
    "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool, "complex64": torch.complex64,
    "double": torch.float64, "float": torch.float32, "half": torch.float16, "fp32": torch.float32,
    "fp16": torch.float16, "bf16": torch.bfloat16, "long": torch.int64, "int": torch.int32,
}  # fmt: skip

_SPEC = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:[x,×]\d+)*|scalar)(?::(?P<dtype>\w+))?"
)


class InputSpec(Struct, frozen=True):
    shape: tuple[int, ...]
    dtype: str = ""
    """Empty: the model's own floating dtype."""
    name: str = ""
    """Empty: positional."""


def parse(text: str) -> InputSpec:
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--input {text!r} is not a shape",
            "write sizes joined by x, with an optional dtype and name: 32x3x224x224, 8x1024:int64, "
            "attention_mask=8x1024:bool",
        )
    dtype = (match["dtype"] or "").lower()
    if dtype and dtype not in _DTYPES:
        known = ", ".join(k for k in _DTYPES if k not in ("float", "half", "long", "int", "double"))
        raise UsageError(f"--input {text!r}: no dtype {dtype!r}", f"one of: {known}")
    shape = match["shape"]
    sizes = () if shape == "scalar" else tuple(int(n) for n in re.split("[x,×]", shape))
    if any(n == 0 for n in sizes):
        raise UsageError(f"--input {text!r} has a dimension of size 0", "sizes start at 1")
    if math.prod(sizes) >= 2**60:
        raise UsageError(f"--input {text!r} has more elements than a tensor can have")
    return InputSpec(sizes, dtype, match["name"] or "")


def make(
    specs: tuple[InputSpec, ...], model: torch.nn.Module, device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tensors for these specs, positional and named."""
    names = [s.name for s in specs if s.name]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--input names {name!r} twice", "give each name once")
    tensors = [(s.name, _tensor(s, model, device)) for s in specs]
    return tuple(t for n, t in tensors if not n), {n: t for n, t in tensors if n}


def model_dtype(model: torch.nn.Module) -> torch.dtype:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype
    return torch.get_default_dtype()


def _tensor(spec: InputSpec, model: torch.nn.Module, device: torch.device) -> torch.Tensor:
    dtype = _DTYPES[spec.dtype] if spec.dtype else model_dtype(model)
    if device.type == "meta":
        return torch.empty(spec.shape, dtype=dtype, device=device)
    if math.prod(spec.shape) * dtype.itemsize > free_bytes(device) // 2:
        # too large to make; its first row shown again and again is enough for counting
        row = _tensor(InputSpec((1, *spec.shape[1:]), spec.dtype), model, device)
        return row.expand(spec.shape)
    if dtype is torch.bool:
        return torch.ones(spec.shape, dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(spec.shape, dtype=torch.float32).to(device=device, dtype=dtype)
    limit = min(_smallest_table(model), torch.iinfo(dtype).max)
    return torch.randint(0, limit, spec.shape, dtype=dtype, device=device)


def _smallest_table(model: torch.nn.Module) -> int:
    tables = [
        m.num_embeddings
        for m in model.modules()
        if isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag)
    ]
    return max(min(tables, default=2), 1)


def describe(value: Any) -> str:
    """An input as the command line would write it."""
    if isinstance(value, torch.Tensor):
        sizes = "x".join(str(n) for n in value.shape) or "scalar"
        return f"{sizes}:{str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__


def base_size(args: tuple[Any, ...], kwargs: dict[str, Any], dimension: Dimension) -> int:
    """The size of the dimension in the first tensor that has it; 1 where there is none."""
    dim = 0 if dimension == "batch" else 1
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim() > dim:
            return value.shape[dim]
    return 1


def resize(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dimension: Dimension,
    size: int,
    *,
    virtual: bool = False,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same inputs at another size: rows repeat, so that values stay legal. Every tensor whose
    dimension equals the first one's follows it. A `virtual` one shows its first row again and
    again and takes no memory: enough for counting."""
    dim, now = (0 if dimension == "batch" else 1), base_size(args, kwargs, dimension)

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() <= dim or value.shape[dim] != now:
            return value
        shape = [*value.shape[:dim], size, *value.shape[dim + 1 :]]
        if value.is_meta:
            return torch.empty(shape, dtype=value.dtype, device="meta")
        if virtual:
            changed = value.detach().narrow(dim, 0, 1).expand(shape)
        else:
            rows = torch.arange(size, device=value.device) % now
            changed = value.detach().index_select(dim, rows)
        return changed.requires_grad_(value.requires_grad)

    return tuple(change(a) for a in args), {k: change(v) for k, v in kwargs.items()}

"""One thing a workload returned or changed, copied to where nothing can change it any more."""

from enum import Enum
from pathlib import PurePath
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

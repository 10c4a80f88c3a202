"""An operator's recorded inputs as the call a formula understands.

Dims and types are in every trace with shapes; the scalars among the arguments ("Concrete Inputs")
only since 2022. A scalar that was not recorded is `UNRECORDED`, and a formula that needs it fails
instead of counting with a wrong default.
"""

import ast
from math import prod
from typing import Any

from msgspec import Struct

from ridgeline.cost.formulas import Call, Tensor
from ridgeline.cost.formulas.call import ITEM_BYTES
from ridgeline.trace.analyses.shape_text import LIST, is_tensor
from ridgeline.trace.trace import Shape

DTYPES = {
    "float": "float32", "double": "float64", "BFloat16": "bfloat16", "Half": "float16",
    "long int": "int64", "long": "int64", "long long": "int64", "int": "int32",
    "short int": "int16", "short": "int16", "signed char": "int8", "char": "int8",
    "unsigned char": "uint8", "bool": "bool", "unsigned short": "uint16", "unsigned int": "uint32",
    "unsigned long": "uint64", "complex<float>": "complex64", "complex<double>": "complex128",
    "complex<Half>": "complex32", "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
    "Float8_e4m3fnuz": "float8_e4m3fnuz", "Float8_e5m2fnuz": "float8_e5m2fnuz",
    "Float8_e8m0fnu": "float8_e8m0fnu", "Float4_e2m1fn_x2": "float4_e2m1fn_x2",
    "qint8": "qint8", "quint8": "quint8", "qint32": "qint32",
}  # fmt: skip
"""C++ names as torch records them, without `c10::`."""

_LONGEST = 4000
"""A list of scalars longer than this is not read."""


class _Unrecorded:
    """Stands where a value is not known; every use of it says so."""

    def __bool__(self) -> bool:
        raise TypeError("an argument was not recorded")

    def __iter__(self) -> Any:
        raise TypeError("an argument was not recorded")

    def __int__(self) -> int:
        raise TypeError("an argument was not recorded")

    __index__ = __int__


UNRECORDED = _Unrecorded()


class Recorded(Struct, frozen=True):
    call: Call
    touched: tuple[int, ...]
    """Bytes of each argument's distinct elements; 0 for what is no tensor."""


def recorded_call(op: str, shape: Shape, list_dtype: str = "") -> Recorded | None:
    """The call, or None where sizes or types are missing.

    `list_dtype`: the type of lists of tensors, which traces leave out; told by the kernel's name.
    """
    if not shape.dims or len(shape.types) < len(shape.dims):
        return None
    # an empty list beside filled ones is empty; where none is filled, lists were not recorded
    lists = any(kind == LIST and dims for kind, dims in zip(shape.types, shape.dims, strict=False))
    args: list[Any] = []
    touched: list[int] = []
    for index, dims in enumerate(shape.dims):
        kind = shape.types[index]
        strides = shape.strides[index] if index < len(shape.strides) else None
        if kind == LIST:
            tensors = _tensors(dims, list_dtype) if lists else None
            if tensors is None:
                return None
            args.append(tensors)
            touched.append(sum(t.nbytes for t in tensors))
        elif is_tensor(kind):
            tensor = _tensor(dims, kind)
            if tensor is None:
                return None
            args.append(tensor)
            touched.append(_touched(tensor, strides))
        else:
            args.append(_scalar(shape, index, kind))
            touched.append(0)
    return Recorded(Call(op=op, args=tuple(args)), tuple(touched))


def _tensor(dims: Any, kind: Any) -> Tensor | None:
    dtype = DTYPES.get(str(kind).removeprefix("c10::"))
    sizes = sizes_of(dims)
    return None if dtype is None or sizes is None else Tensor(sizes, dtype)


def _tensors(dims: Any, dtype: str) -> list[Tensor] | None:
    if not isinstance(dims, list) or not dtype:
        return None
    sizes = [sizes_of(entry) for entry in dims]
    return None if None in sizes else [Tensor(s, dtype) for s in sizes if s is not None]


def sizes_of(dims: Any) -> tuple[int, ...] | None:
    """A tensor's sizes, None where the file holds something else in their place."""
    if not isinstance(dims, list):
        return None
    if any(isinstance(d, bool) or not isinstance(d, int) or not 0 <= d < 2**40 for d in dims):
        return None
    return tuple(dims)


def _touched(tensor: Tensor, strides: Any) -> int:
    """An expanded dimension (stride 0) is one element deep."""
    if not isinstance(strides, list) or len(strides) != len(tensor.shape):
        return tensor.nbytes
    distinct = prod(n for n, stride in zip(tensor.shape, strides, strict=True) if stride or n == 0)
    return distinct * ITEM_BYTES.get(tensor.dtype, 4)


def _scalar(shape: Shape, index: int, kind: Any) -> Any:
    if index >= len(shape.concrete):
        return UNRECORDED
    text = shape.concrete[index]
    if not isinstance(text, str) or len(text) > _LONGEST:
        return UNRECORDED
    if text == "":
        return UNRECORDED if kind in ("Scalar", "ScalarList") else None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text

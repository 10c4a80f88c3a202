"""The input and output of a formula: a call of an operator on tensors without data, and its work.

The module does not need torch, so that the same formulas serve for a live model and for the shapes
recorded in a trace.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, Literal

from msgspec import Struct

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
    "complex128": 16, "complex64": 8, "complex32": 4,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "uint16": 2, "uint32": 4, "uint64": 8,
    "qint8": 1, "quint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1,
}  # fmt: skip


class Tensor(Struct, frozen=True):
    """A tensor as a formula sees it: shape and dtype ("float32", "bfloat16" …)."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    stored: int | None = None
    """Sparse tensors only: the number of stored elements."""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * ITEM_BYTES.get(self.dtype, 4)

    @property
    def is_complex(self) -> bool:
        return self.dtype.startswith("complex")


class Call(Struct, frozen=True):
    """One call of an operator: its arguments in the order of the schema, and its outputs.

    `outputs` may be empty, because a trace does not record them. Formulas then derive sizes from
    the inputs.
    """

    op: str
    """The name without overload, such as "aten::addmm"."""
    args: tuple[Any, ...]
    names: tuple[str, ...] = ()
    """The names of `args` in the schema; empty if they are not known."""
    outputs: tuple[Tensor, ...] = ()

    def get(self, name: str, index: int, default: Any = None) -> Any:
        """Return an argument by its name in the schema, or by position if names are not known."""
        if self.names:
            return self.args[self.names.index(name)] if name in self.names else default
        return self.args[index] if index < len(self.args) else default

    def tensor(self, index: int) -> Tensor:
        """Return the argument at a position, which must be a tensor."""
        value = self.args[index]
        if not isinstance(value, Tensor):
            raise TypeError(f"{self.op}: argument {index} is not a tensor")
        return value

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors among the arguments, also those in lists."""
        return tuple(_flatten(self.args))

    @property
    def elements(self) -> int:
        """The elements of the largest output; if outputs are unknown, those of the broadcast
        inputs."""
        if self.outputs:
            return max(t.numel for t in self.outputs)
        return prod(_broadcast([t.shape for t in self.tensors]))


class Work(Struct, frozen=True, kw_only=True):
    """The work of one call. One MAC is 2 FLOPs."""

    macs: int = 0
    transform_flops: int = 0
    """The FLOPs of heavy work without MACs: FFTs, matrix factorisations."""
    other_flops: int = 0
    """The FLOPs of elementwise work, norms, softmax and reductions."""
    recomputed_macs: int = 0
    """The MACs that backward computes again because forward did not keep the result, such as the
    scores of flash attention."""
    skipped_macs: int = 0
    """The part of `macs` that a causal kernel skips."""
    read_bytes: int | None = None
    """The bytes read if the operator reads less than all of its inputs, such as a gather; None for
    all of them."""
    written_bytes: int | None = None
    """The bytes written if the operator writes less than its whole output, such as a scatter in
    place; None for the whole."""

    @property
    def flops(self) -> int:
        return 2 * self.macs + self.transform_flops


def _flatten(values: tuple[Any, ...] | list[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _flatten(value)


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


Formula = Callable[[Call], Work]

Family = Literal[
    "", "attention", "convolution", "elementwise", "matmul", "movement", "quantized", "recurrent",
    "reduction", "transform",
]  # fmt: skip
"""The kind of work that an operator does. A formula that a user registers has no family."""

_FORMULAS: dict[str, tuple[Formula, Family]] = {}


def formula(*operators: str, family: Family = "") -> Callable[[Formula], Formula]:
    """Register a function as the cost of these operators ("namespace::name", no overload)."""

    def register(function: Formula) -> Formula:
        for operator in operators:
            if "::" not in operator or "." in operator:
                raise ValueError(
                    f"{operator!r}: write an operator as namespace::name, without its overload"
                )
            replaced = _FORMULAS.get(operator)
            _FORMULAS[operator] = (function, family or (replaced[1] if replaced else ""))
        return function

    return register


def find(operator: str) -> Formula | None:
    """Return the formula of an operator. An in-place operator has the formula of its out-of-place
    twin. An operator over lists applies the formula of the elements to each of them."""
    known = _registered_as(operator)
    if known is not None:
        return _FORMULAS[known][0]
    element = _registered_as(operator.replace("::_foreach_", "::"))
    return None if element is None else _over_lists(_FORMULAS[element][0])


def family_of(operator: str) -> Family:
    """Return the kind of work that an operator does; "" if it has no formula.

    An operator over lists has no family: what it returns cannot be derived as for its elements."""
    known = _registered_as(operator)
    return "" if known is None else _FORMULAS[known][1]


def _registered_as(operator: str) -> str | None:
    """Return the name under which an operator or its out-of-place twin has a formula."""
    while operator not in _FORMULAS:
        if not operator.endswith("_") or operator.endswith("__"):
            return None
        operator = operator[:-1]
    return operator


def work_of(call: Call) -> Work | None:
    """Return the work of a call; None if the operator has no formula."""
    function = find(call.op)
    return None if function is None else function(call)


def known_operators() -> tuple[str, ...]:
    return tuple(sorted(_FORMULAS))


def _over_lists(element: Formula) -> Formula:
    def each(call: Call) -> Work:
        lists = [a for a in call.args if isinstance(a, list | tuple) and _holds_tensors(a)]
        length = len(lists[0]) if lists else 0
        total = 0
        for i in range(length):
            args: tuple[Any, ...] = tuple(
                a[i] if isinstance(a, list | tuple) and len(a) == length else a for a in call.args
            )
            first = next(a for a in args if isinstance(a, Tensor))
            total += element(
                Call(op=call.op, args=args, names=call.names, outputs=(first,))
            ).other_flops
        return Work(other_flops=total)

    return each


def _holds_tensors(values: list[Any] | tuple[Any, ...]) -> bool:
    return bool(values) and isinstance(values[0], Tensor)

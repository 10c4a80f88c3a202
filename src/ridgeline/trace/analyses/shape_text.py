"""Recorded inputs as a line: `[32, 3, 224, 224] [64, 3, 7, 7] float`."""

from typing import Any

from ridgeline.trace.trace import Shape

_NO_TENSOR = frozenset({
    "", "Scalar", "ScalarList", "Int", "Double", "Bool", "Float", "Long", "GenericList", "String",
    "Device", "None", "Dict", "Generator", "Stream", "Layout", "ScalarType",
})  # fmt: skip
"""What is not a tensor. Tensors have C++ names (`float`, `long int`); the capitals are scalars."""
LIST = "TensorList"
MOST_TENSORS = 6


def is_tensor(kind: Any) -> bool:
    return isinstance(kind, str) and kind not in _NO_TENSOR and kind != LIST


def shape_text(shape: Shape) -> str:
    """The tensors' sizes, then their types once each; scalars are left out."""
    parts: list[str] = []
    types: list[str] = []
    for index, dims in enumerate(shape.dims):
        kind = shape.types[index] if index < len(shape.types) else None
        if kind is None and dims:
            parts.append(_sizes(dims))  # traces that recorded sizes and no types
        elif kind == LIST and dims:
            parts.append(_list(dims))
        elif is_tensor(kind):
            parts.append(_sizes(dims))
            types.append(str(kind).removeprefix("c10::").lower())
    if len(parts) > MOST_TENSORS:
        parts = [*parts[:MOST_TENSORS], f"+{len(parts) - MOST_TENSORS} more"]
    return " ".join([*parts, ", ".join(dict.fromkeys(types))]).strip()


def _sizes(dims: Any) -> str:
    if not isinstance(dims, list):
        return str(dims)
    if any(isinstance(d, list) for d in dims):
        return _list(dims)
    return "[" + ", ".join(str(d) for d in dims) + "]"


def _list(dims: Any) -> str:
    """`3x[16, 64]` where all are alike, else the first and how many more."""
    if not isinstance(dims, list) or not dims:
        return "[]"
    texts = [_sizes(d) for d in dims]
    if len(set(texts)) == 1:
        return f"{len(texts)}x{texts[0]}"
    return f"({texts[0]} +{len(texts) - 1} more)"

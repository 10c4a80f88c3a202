"""Values over NumPy: plain arrays, and a course framework's tensors that wrap one in `.data`.

Torch tensors are read too (a plain object may hold them), by their methods: torch itself is never
imported here.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.integrations.profiler.units import Shape

Array = npt.NDArray[Any]


def array_of(value: Any) -> Array | None:
    """The array behind a value; None where there is none."""
    if isinstance(value, np.ndarray):  # first: an array's own `.data` is a memoryview
        return value
    data = getattr(value, "data", None)
    if isinstance(data, np.ndarray):
        return data
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        dense = value.detach().cpu()
        return np.asarray(dense.float() if dense.is_floating_point() else dense)
    return None


def shape_of(value: Any) -> Shape | None:
    shape = getattr(value, "shape", None)
    return tuple(int(size) for size in shape) if isinstance(shape, tuple) else None


def element_count(value: Any) -> int:
    if hasattr(value, "detach"):
        return int(value.numel())
    array = array_of(value)
    return int(np.size(value) if array is None else array.size)


def byte_count(value: Any) -> int:
    """Bytes in the value's own dtype; a bare Python number counts as NumPy would store it."""
    if hasattr(value, "detach"):
        return int(value.numel() * value.element_size())
    array = array_of(value)
    return int(np.asarray(value).nbytes if array is None else array.nbytes)


def storage_key(value: Any) -> tuple[int, int]:
    """Equal for values that share memory, so that a tied weight counts once."""
    if hasattr(value, "data_ptr"):
        return int(value.data_ptr()), byte_count(value)
    array = array_of(value)
    if array is None:
        return id(value), 0
    return int(array.__array_interface__["data"][0]), array.nbytes


def unique(values: list[Any]) -> list[Any]:
    """Each storage once, in the order met; empty values all stay (they share an address)."""
    seen: set[tuple[int, int]] = set()
    kept = []
    for value in values:
        key = storage_key(value)
        if key not in seen or element_count(value) == 0:
            seen.add(key)
            kept.append(value)
    return kept


def total_bytes(values: list[Any]) -> int:
    return sum(byte_count(value) for value in values)

"""How many samples and tokens a batch holds, by its shape alone."""

from collections.abc import Mapping
from typing import Any, NamedTuple

_DEEPEST = 4
_WIDEST = 32


class Amount(NamedTuple):
    samples: int = 0
    tokens: int = 0


NOTHING = Amount()


def amount(torch: Any, batch: Any) -> Amount:
    """Of the first tensor with a first dimension: in a tuple the inputs come first, in a mapping
    `input_ids` is preferred, as every tokenizer names it."""
    with torch._C.DisableTorchFunction():  # the program's own kinds of tensor must not hear of it
        found = _first(torch, batch, 0)
        if found is None:
            return NOTHING
        shape = found.shape
        if not all(type(size) is int for size in shape):  # symbols: the program is being traced
            return NOTHING
        if len(shape) == 1 and found.is_floating_point():
            return NOTHING  # one long vector is no batch of numbers
        text = len(shape) == 2 and not (found.is_floating_point() or found.is_complex())
        return Amount(int(shape[0]), int(shape[0]) * int(shape[1]) if text else 0)


def _first(torch: Any, value: Any, depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.dim() > 0 else None
    if depth >= _DEEPEST:
        return None
    if isinstance(value, tuple | list):
        children = list(value[:_WIDEST])
    elif isinstance(value, Mapping):
        named = value.get("input_ids")
        children = [named] if named is not None else list(value.values())[:_WIDEST]
    else:
        return None
    for child in children:
        found = _first(torch, child, depth + 1)
        if found is not None:
            return found
    return None

"""A model's call in parts of the batch: what a part keeps for the backward is computed again when
the backward comes to it, so that one part's activations are in memory at a time, and the gradients
of all parts add up. The loss sees the whole batch. This file is written into a program's source as
it is, so it uses torch alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def in_parts(model: Callable[..., Any], *args: Any, parts: int, **kwargs: Any) -> Any:
    """`model(*args, **kwargs)`, whose outputs have a row for each row of its first tensor."""
    every = (*args, *kwargs.values())
    sizes = (one.size(0) for one in every if isinstance(one, torch.Tensor) and one.dim())
    rows = next(sizes, 0)
    if rows < parts:
        return model(*args, **kwargs)
    size = -(-rows // parts)

    def cut(one: Any, first: int) -> Any:
        if isinstance(one, torch.Tensor) and one.dim() and one.size(0) == rows:
            return one[first : first + size]
        return one

    found = []
    for first in range(0, rows, size):
        given = [cut(one, first) for one in args]
        named = {key: cut(one, first) for key, one in kwargs.items()}
        if torch.is_grad_enabled():
            found.append(checkpoint(model, *given, use_reentrant=False, **named))
        else:
            found.append(model(*given, **named))
    return joined(found)


def joined(found: list[Any]) -> Any:
    """Rows of each part one after the other. What is no tensor with rows is refused: a mean of
    means need not be the mean."""
    first = found[0]
    if isinstance(first, torch.Tensor) and first.dim():
        return torch.cat(found)
    if type(first) in (tuple, list):
        return type(first)(joined(list(each)) for each in zip(*found, strict=True))
    if type(first) is dict:
        return {key: joined([one[key] for one in found]) for key in first}
    if first is None:
        return None
    raise TypeError(f"the model returns {type(first).__name__}, which is no row for each sample")

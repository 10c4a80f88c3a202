"""How many samples and tokens a batch holds: by what it says of itself, else by its shapes alone.

A batch of graphs is one large graph: its tensors have as many rows as there are nodes or edges, and
only the batch itself knows how many graphs those were. Where nothing tells the samples, the amount
is unknown: a wrong rate is worse than none.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_DEEPEST = 4
_WIDEST = 32
_COUNTS = ("num_graphs", "batch_size")
"""Attributes by which batches of graphs say how many samples they hold."""
_PLAIN = (str, bytes, int, float, bool, complex, type(None))


class Amount(NamedTuple):
    samples: int = 0
    tokens: int = 0


NOTHING = Amount()


def amount(torch: Any, batch: Any, expected: int | None = None) -> Amount:
    """Of the first tensor with a first dimension: in a tuple the inputs come first, in a mapping
    `input_ids` is preferred, as every tokenizer names it. `expected`: how many samples the loader
    puts into a batch, where that is known."""
    with torch._C.DisableTorchFunction():  # the program's own kinds of tensor must not hear of it
        told = _told(torch, batch, _COUNTS, 0)
        if told:
            return Amount(told)
        tensors = list(_tensors(torch, batch, 0))
        if not tensors:
            return NOTHING
        found = tensors[0]
        shape = found.shape
        if not all(type(size) is int for size in shape):  # symbols: the program is being traced
            return NOTHING
        rows = _samples(torch, tensors, expected)
        if not rows or (len(shape) == 1 and found.is_floating_point()):
            return Amount(rows) if rows and rows != shape[0] else NOTHING  # no batch of numbers
        text = len(shape) == 2 and not (found.is_floating_point() or found.is_complex())
        return Amount(rows, int(shape[0]) * int(shape[1]) if text and rows == shape[0] else 0)


def _samples(torch: Any, tensors: list[Any], expected: int | None) -> int:
    """The rows of the first tensor, unless they are nodes of graphs, or parts of samples that were
    put end to end: then what the loader says. A loader of one sample a batch says nothing, because
    that sample may be a batch already."""
    rows = int(tensors[0].shape[0])
    whole = expected is None or expected <= 1 or rows <= expected
    if not whole and expected is not None:
        others = any(tensor.shape[0] == expected for tensor in tensors[1:])
        return expected if others or rows % expected else rows
    edges = rows > 2 and any(_is_edge_list(torch, tensor) for tensor in tensors[1:])
    return _graphs(torch, tensors) if edges and rows != expected else rows


def _is_edge_list(torch: Any, tensor: Any) -> bool:
    """Pairs of nodes: int64[2, edges]. Beside more than two rows it is no batch of two texts."""
    return tensor.dim() == 2 and tensor.shape[0] == 2 and tensor.dtype is torch.int64


def _graphs(torch: Any, tensors: list[Any]) -> int:
    """The graphs whose nodes the rows of the first tensor are, by a vector that numbers them for
    each node; 0 where there is none, or where reading it would be noticed: by a device that has to
    be waited for, or by a mode of the program's own."""
    nodes = tensors[0].shape[0]
    if torch._C._len_torch_dispatch_stack():
        return 0
    for tensor in tensors[1:]:
        if tensor.dim() == 1 and tensor.shape[0] == nodes and tensor.dtype is torch.int64:
            return int(tensor[-1]) + 1 if tensor.is_cpu and nodes else 0
    return 0


def _told(torch: Any, value: Any, names: tuple[str, ...], depth: int) -> int:
    """The samples that a batch, or the first of its parts that knows it, says that it holds. After
    a tensor only batches of graphs are asked: any object may have a `batch_size` of its own."""
    if isinstance(value, (torch.Tensor, *_PLAIN)) or depth >= _DEEPEST:
        return 0
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return int(value.batch_sizes[0]) if len(value.batch_sizes) else 0
    if isinstance(value, tuple | list | Mapping):
        for child in _children(value):
            told = _told(torch, child, names, depth + 1)
            if told:
                return told
            if isinstance(child, torch.Tensor):
                names = ("num_graphs",)
        return 0
    for name in names:
        try:
            count = getattr(value, name, None)
        except Exception:  # an attribute of the program's own that raises
            continue
        if type(count) is int and count > 0:
            return count
    return 0


def _tensors(torch: Any, value: Any, depth: int) -> Iterator[Any]:
    """Those with a first dimension, in their order."""
    if isinstance(value, torch.Tensor):
        if value.dim() > 0:
            yield value
    elif depth < _DEEPEST and isinstance(value, tuple | list | Mapping):
        for child in _children(value):
            yield from _tensors(torch, child, depth + 1)


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        named = value.get("input_ids")
        return [named] if named is not None else list(value.values())[:_WIDEST]
    return list(value[:_WIDEST])

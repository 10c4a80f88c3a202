"""How many samples and tokens a batch holds: by its own attributes, else by its shapes alone.

A batch of graphs is one large graph: its tensors have as many rows as there are nodes or edges, and
only the batch itself knows how many graphs it was made of. If the number of samples cannot be told,
it is unknown: a wrong rate is worse than none.
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
    `input_ids` is preferred, as every tokenizer names it. `expected` is how many samples the loader
    puts into a batch, if that is known."""
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
            # The length of one long vector of floats is not a number of samples.
            return Amount(rows) if rows and rows != shape[0] else NOTHING
        text = len(shape) == 2 and not (found.is_floating_point() or found.is_complex())
        return Amount(rows, int(shape[0]) * int(shape[1]) if text and rows == shape[0] else 0)


def _samples(torch: Any, tensors: list[Any], expected: int | None) -> int:
    """Return the number of samples; 0 if it is not known. It is the number of rows of the first
    tensor, unless these are nodes of graphs, or parts of samples that were put end to end. Then the
    loader's batch size counts. A batch size of one says nothing, because the one sample may be a
    batch already."""
    rows = int(tensors[0].shape[0])
    whole = expected is None or expected <= 1 or rows <= expected
    if not whole and expected is not None:
        others = any(tensor.shape[0] == expected for tensor in tensors[1:])
        return expected if others or rows % expected else rows
    edges = rows > 2 and any(_is_edge_list(torch, tensor) for tensor in tensors[1:])
    return _graphs(torch, tensors) if edges and rows != expected else rows


def _is_edge_list(torch: Any, tensor: Any) -> bool:
    """Return whether a tensor holds pairs of nodes, int64[2, edges]. It could also be a batch of
    two texts, but not beside a tensor of more than two rows."""
    return tensor.dim() == 2 and tensor.shape[0] == 2 and tensor.dtype is torch.int64


def _graphs(torch: Any, tensors: list[Any]) -> int:
    """Return the number of graphs whose nodes are the rows of the first tensor. It is read from the
    vector that gives each node the number of its graph. Return 0 if there is no such vector, or if
    the program would notice the reading: by a wait for a device, or by a dispatch mode of its own.
    """
    nodes = tensors[0].shape[0]
    if torch._C._len_torch_dispatch_stack():
        return 0
    for tensor in tensors[1:]:
        if tensor.dim() == 1 and tensor.shape[0] == nodes and tensor.dtype is torch.int64:
            return int(tensor[-1]) + 1 if tensor.is_cpu and nodes else 0
    return 0


def _told(torch: Any, value: Any, names: tuple[str, ...], depth: int) -> int:
    """Return the number of samples that the batch, or the first of its parts with such an
    attribute, says it holds; 0 if none says. After a tensor only batches of graphs are asked,
    because any object may have a `batch_size` of its own."""
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
    """Yield the tensors of a batch that have a first dimension, in their order."""
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

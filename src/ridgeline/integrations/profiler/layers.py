"""What a layer over arrays is, read from its attributes: its parameters, the layers inside it, and
its kind.

A class *named* Linear or Conv2d is taken at its word, as the course does; anything else is judged
by what it holds.
"""

from collections.abc import Iterator
from typing import Any

from ridgeline.integrations.profiler.arrays import array_of, element_count, shape_of, unique
from ridgeline.integrations.profiler.units import Shape

HEADS = ("num_heads", "n_heads", "n_head", "heads", "nhead")


def type_name(layer: Any) -> str:
    return type(layer).__name__


def runs(layer: Any) -> bool:
    """Whether it can be run at all: a bare tensor, or a description of a layer, cannot."""
    return callable(getattr(layer, "forward", None)) or callable(layer)


def weight_and_bias(layer: Any) -> list[Any]:
    if getattr(layer, "weight", None) is None:
        return []
    bias = getattr(layer, "bias", None)
    return [layer.weight] if bias is None else [layer.weight, bias]


def own_parameters(layer: Any) -> list[Any]:
    if callable(getattr(layer, "parameters", None)):
        return list(layer.parameters())
    return weight_and_bias(layer)


def parameters(model: Any) -> list[Any]:
    """The course looks in `.layers` first, then `.parameters()`, then `.weight`. A model may hold
    more than its `.layers` (a head, say), so the fuller of the first two is taken; a parameter
    reached twice counts once."""
    listed = unique(own_parameters(model))
    stacked = unique([p for layer in stack(model) for p in own_parameters(layer)])
    return max(stacked, listed, key=lambda found: sum(map(element_count, found)))


def stack(model: Any) -> list[Any]:
    layers = getattr(model, "layers", None)
    return list(layers) if isinstance(layers, (list, tuple)) else []


def children(layer: Any) -> Iterator[tuple[str, Any]]:
    """The layers held in its attributes, in lists and dictionaries too, by attribute name."""
    for name, value in vars(layer).items() if hasattr(layer, "__dict__") else ():
        held = value.values() if isinstance(value, dict) else value
        for item in held if isinstance(value, (list, tuple, dict)) else (value,):
            if callable(getattr(item, "forward", None)) and not isinstance(item, type):
                yield name, item


def descendants(layer: Any) -> list[Any]:
    """Every layer below this one, once each, parents before children."""
    seen, found, waiting = {id(layer)}, [], [layer]
    while waiting:
        for _, child in children(waiting.pop(0)):
            if id(child) not in seen:
                seen.add(id(child))
                found.append(child)
                waiting.append(child)
    return found


def matrices(layer: Any) -> list[Shape]:
    """Shapes of the two-dimensional arrays it multiplies by: of its parameters, or, where it lists
    none, of attributes named as weights are (W1, w_q, out_weight), not of inputs kept for later."""
    if callable(getattr(layer, "parameters", None)):
        held = own_parameters(layer)
    else:
        named = getattr(layer, "__dict__", {}).items()
        held = [v for n, v in named if n[:1] in "wW" or "weight" in n.lower()]
    shapes = [shape_of(value) for value in held if array_of(value) is not None]
    return [shape for shape in shapes if shape is not None and len(shape) == 2]


def is_linear(layer: Any) -> bool:
    shape = shape_of(getattr(layer, "weight", None))
    sized = hasattr(layer, "in_features") and shape is not None and len(shape) == 2
    return type_name(layer) == "Linear" or sized


def is_convolution(layer: Any) -> bool:
    described = all(hasattr(layer, a) for a in ("in_channels", "out_channels", "kernel_size"))
    return type_name(layer).startswith("Conv") and described


def is_pooling(layer: Any) -> bool:
    return "Pool" in type_name(layer) and hasattr(layer, "kernel_size")


def is_lookup(layer: Any) -> bool:
    """A table read by index or by position, not multiplied by."""
    return any(word in type_name(layer) for word in ("Embedding", "Encoding", "Position"))


def is_attention(layer: Any) -> bool:
    """The innermost object that speaks of heads or is named for attention: a block, or a whole
    model, often repeats `num_heads` above it."""
    return _mentions_attention(layer) and not any(map(_mentions_attention, descendants(layer)))


def _mentions_attention(layer: Any) -> bool:
    return "attention" in type_name(layer).lower() or any(hasattr(layer, name) for name in HEADS)


def sample_dims(model: Any) -> int:
    """How many dimensions one sample has: channels and space where the first layer convolves, else
    one. More dimensions than that, and dimension 0 of the input is the batch."""
    first = next((m for m in (model, *descendants(model)) if not any(children(m))), model)
    if stack(model) and not runs(stack(model)[0]):
        first = stack(model)[0]
    return convolution_dims(first) + 1 if is_convolution(first) or is_pooling(first) else 1


def convolution_dims(layer: Any) -> int:
    """1, 2 or 3 spatial dimensions: by the kernel, else by the digit in the name."""
    kernel = getattr(layer, "kernel_size", None)
    if isinstance(kernel, (tuple, list)):
        return len(kernel)
    return next((int(digit) for digit in "123" if f"{digit}d" in type_name(layer).lower()), 2)

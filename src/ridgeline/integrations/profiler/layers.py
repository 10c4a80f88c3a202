"""Layers of frameworks written in NumPy: their arrays and parameters, their kinds, and the FLOPs
and output shapes that their attributes imply.

A value is a NumPy array, or a tensor of the framework that wraps one in `.data`. Torch tensors that
a plain object holds are read too, by their methods: torch is never imported here."""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.integrations.profiler.subject import Shape

Array = npt.NDArray[Any]


def array_of(value: Any) -> Array | None:
    """Return the array of a value; None if it has none."""
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
    """Return the size in bytes in the value's own dtype. A Python number counts as NumPy stores
    it."""
    if hasattr(value, "detach"):
        return int(value.numel() * value.element_size())
    array = array_of(value)
    return int(np.asarray(value).nbytes if array is None else array.nbytes)


def storage_key(value: Any) -> tuple[int, int]:
    """Return a key that values which share memory have in common, so that a tied weight counts
    once."""
    if hasattr(value, "data_ptr"):
        return int(value.data_ptr()), byte_count(value)
    array = array_of(value)
    if array is None:
        return id(value), 0
    return int(array.__array_interface__["data"][0]), array.nbytes


def unique(values: list[Any]) -> list[Any]:
    """Return the values without repeated storages, in order. Empty values are all kept, because
    they may share an address."""
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


HEAD_COUNT_NAMES = ("num_heads", "n_heads", "n_head", "heads", "nhead")
"""Names under which attention layers keep their number of heads."""


def type_name(layer: Any) -> str:
    return type(layer).__name__


def runs(layer: Any) -> bool:
    """Return whether it can be run. A tensor, or a mere description of a layer, cannot."""
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
    """Return the parameters, each once. The course looks in `.layers` first, then `.parameters()`,
    then `.weight`. Since a model may hold more than its `.layers`, such as a head, the larger of
    the first two is taken."""
    listed = unique(own_parameters(model))
    stacked = unique([p for layer in stack(model) for p in own_parameters(layer)])
    return max(stacked, listed, key=lambda values: sum(map(element_count, values)))


def stack(model: Any) -> list[Any]:
    layers = getattr(model, "layers", None)
    return list(layers) if isinstance(layers, (list, tuple)) else []


def children(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield each layer that an attribute holds, also in a list or dictionary, with the attribute's
    name."""
    for name, value in vars(layer).items() if hasattr(layer, "__dict__") else ():
        held = value.values() if isinstance(value, dict) else value
        for item in held if isinstance(value, (list, tuple, dict)) else (value,):
            if callable(getattr(item, "forward", None)) and not isinstance(item, type):
                yield name, item


def descendants(layer: Any) -> list[Any]:
    """Return every layer below this one, each once, parents before children."""
    seen, found, waiting = {id(layer)}, [], [layer]
    while waiting:
        for _, child in children(waiting.pop(0)):
            if id(child) not in seen:
                seen.add(id(child))
                found.append(child)
                waiting.append(child)
    return found


def matrices(layer: Any) -> list[Shape]:
    """Return the shapes of the matrices that a layer multiplies by: of its parameters, or, if it
    lists none, of attributes named like weights (W1, w_q, out_weight), but not of inputs kept for
    later."""
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
    """Return whether the layer is a table that is read by index or position, not multiplied by."""
    return any(word in type_name(layer) for word in ("Embedding", "Encoding", "Position"))


def is_attention(layer: Any) -> bool:
    """Return whether it is the innermost object that has heads or attention in its name. The block
    or model around it often repeats `num_heads`."""
    return _mentions_attention(layer) and not any(map(_mentions_attention, descendants(layer)))


def _mentions_attention(layer: Any) -> bool:
    return "attention" in type_name(layer).lower() or any(
        hasattr(layer, name) for name in HEAD_COUNT_NAMES
    )


def sample_dims(model: Any) -> int:
    """Return how many dimensions one sample has: channels and space if the first layer convolves,
    else one. If an input has more, its dimension 0 is the batch."""
    first = next((m for m in (model, *descendants(model)) if not any(children(m))), model)
    if stack(model) and not runs(stack(model)[0]):
        first = stack(model)[0]
    return convolution_dims(first) + 1 if is_convolution(first) or is_pooling(first) else 1


def convolution_dims(layer: Any) -> int:
    """Return the number of spatial dimensions, 1 to 3: by the kernel, else by the digit in the
    name."""
    kernel = getattr(layer, "kernel_size", None)
    if isinstance(kernel, (tuple, list)):
        return len(kernel)
    return next((int(digit) for digit in "123" if f"{digit}d" in type_name(layer).lower()), 2)


class Count(NamedTuple):
    """FLOPs, and the part of them that is spent in products."""

    flops: int
    products: int

    def plus(self, other: "Count") -> "Count":
        return Count(self.flops + other.flops, self.products + other.products)


NOTHING = Count(0, 0)


def linear_flops(layer: Any, shape: Shape) -> int:
    """Return the FLOPs of a linear layer. It multiplies every row of the leading dimensions, such
    as each token of a sequence."""
    return 2 * prod(shape) * out_features(layer, shape[-1])


def out_features(layer: Any, in_features: int) -> int:
    """Return the output width. Weights of the course are (in, out), those of torch (out, in); the
    width of the input tells which."""
    weight = shape_of(getattr(layer, "weight", None))
    if weight is None or len(weight) != 2:
        return int(getattr(layer, "out_features", 1))
    return weight[0] if weight[1] == in_features != weight[0] else weight[1]


def convolution_flops(layer: Any, shape: Shape) -> int:
    """Return the FLOPs of a convolution: a product of a kernel window for each output position, or
    for each input position if it is transposed. It is 0 for a layer without the usual attributes,
    as in the course."""
    if not all(hasattr(layer, a) for a in ("in_channels", "out_channels", "kernel_size")):
        return 0
    dims = convolution_dims(layer)
    transposed = "Transpose" in type_name(layer)
    positions = shape[-dims:] if transposed else spatial_size(layer, shape[-dims:])
    samples = prod(shape[: -dims - 1])
    window = prod(each(layer.kernel_size, dims)) * layer.in_channels // _setting(layer, "groups", 1)
    return int(2 * samples * prod(positions) * window * layer.out_channels)


def attention_flops(groups: int, queries: int, keys: int, width: int) -> int:
    """Return the FLOPs of the scores and of their product with the values. `width` covers all
    heads; a mask saves nothing."""
    return 2 * (2 * groups * queries * keys * width)


def layer_count(layer: Any, shape: Shape, output: Shape | None = None) -> Count:
    """Return the FLOPs of a layer that has no layers inside."""
    if is_convolution(layer):
        return _product(convolution_flops(layer, shape))
    if is_linear(layer):
        return _product(linear_flops(layer, shape))
    held = matrices(layer)
    if held and not is_lookup(layer) and _can_map(held, shape, output):
        # A hand-written layer (x @ W1, then @ W2) multiplies each row of the input by each matrix.
        flops = sum(2 * prod(matrix) for matrix in held) * prod(shape[:-1])
        if is_attention(layer) and len(shape) > 1:
            flops += attention_flops(prod(shape[:-2]), shape[-2], shape[-2], shape[-1])
        return _product(flops)
    return Count(prod(output if output and is_lookup(layer) else shape), 0)


def _can_map(held: list[Shape], shape: Shape, output: Shape | None) -> bool:
    """Return whether products with these matrices can turn the input into the output."""
    if not shape or not any(shape[-1] in matrix for matrix in held):
        return False
    if not output:
        return True
    if len(held) == 1:
        return sorted(held[0]) == sorted((shape[-1], output[-1]))
    return any(output[-1] in matrix for matrix in held)


def stack_count(stacked: Iterable[Any], shape: Shape) -> Count:
    """Return the FLOPs of layers in a row, each on the output shape of the previous one."""
    total = NOTHING
    for layer in stacked:
        inner = stack(layer)
        total = total.plus(stack_count(inner, shape) if inner else layer_count(layer, shape))
        shape = output_shape(layer, shape)
    return total


def output_shape(layer: Any, shape: Shape) -> Shape:
    inner = stack(layer)
    if inner:
        for each_layer in inner:
            shape = output_shape(each_layer, shape)
        return shape
    if is_convolution(layer) or is_pooling(layer):
        dims = convolution_dims(layer)
        channels = getattr(layer, "out_channels", shape[-dims - 1])
        return (*shape[: -dims - 1], channels, *spatial_size(layer, shape[-dims:]))
    if is_linear(layer):
        return (*shape[:-1], out_features(layer, shape[-1]))
    if type_name(layer) == "Flatten":
        return (shape[0], prod(shape[1:]))
    weight = shape_of(getattr(layer, "weight", None))
    if weight is not None and len(weight) == 2:
        return (*shape, weight[1]) if is_lookup(layer) else (*shape[:-1], weight[1])
    return shape


def spatial_size(layer: Any, size: Shape) -> Shape:
    """Return the size of the output. For a layer without `padding` it is `in // stride`, because
    the course assumes a convolution that keeps the size."""
    dims = len(size)
    kernel = each(layer.kernel_size, dims)
    default_stride = layer.kernel_size if is_pooling(layer) else 1
    stride = each(_setting(layer, "stride", default_stride), dims)
    padding = getattr(layer, "padding", None)
    if padding is None or padding == "same":
        return tuple(-(-n // s) if padding else n // s for n, s in zip(size, stride, strict=True))
    pad = each(0 if padding == "valid" else padding, dims)
    dilation = each(_setting(layer, "dilation", 1), dims)
    if "Transpose" in type_name(layer):
        extra = each(_setting(layer, "output_padding", 0), dims)
        return tuple(
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1
            for n, k, s, p, d, e in zip(size, kernel, stride, pad, dilation, extra, strict=True)
        )
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, pad, dilation, strict=True)
    )


def each(value: Any, dims: int) -> Shape:
    """Return a setting for each dimension. A single number holds for all of them."""
    return tuple(value) if isinstance(value, (tuple, list)) else (int(value),) * dims


def _setting(layer: Any, name: str, default: Any) -> Any:
    value = getattr(layer, name, None)
    return default if value is None else value


def _product(flops: int) -> Count:
    return Count(flops, flops)

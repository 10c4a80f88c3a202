"""FLOPs of layers over arrays, from shapes and attributes alone.

Two per multiply-add in matrix products, convolutions and attention; bias not counted; one per
element for a layer that has no product: the course's convention. Every function here counts the
whole input it is given; per-sample figures come from giving it one sample.
"""

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from ridgeline.integrations.profiler import layers
from ridgeline.integrations.profiler.arrays import shape_of
from ridgeline.integrations.profiler.units import Shape


class Count(NamedTuple):
    """`products` is the part of `flops` spent in products."""

    flops: int
    products: int

    def plus(self, other: "Count") -> "Count":
        return Count(self.flops + other.flops, self.products + other.products)


NOTHING = Count(0, 0)


def linear_flops(layer: Any, shape: Shape) -> int:
    """Every leading dimension is a row to multiply: a sequence counts each of its tokens."""
    return 2 * prod(shape) * out_features(layer, shape[-1])


def out_features(layer: Any, in_features: int) -> int:
    """Course weights are (in, out), torch's (out, in); the input says which it is."""
    weight = shape_of(getattr(layer, "weight", None))
    if weight is None or len(weight) != 2:
        return int(getattr(layer, "out_features", 1))
    return weight[0] if weight[1] == in_features != weight[0] else weight[1]


def convolution_flops(layer: Any, shape: Shape) -> int:
    """Each output position is one product of a kernel window; transposed, each input position.
    Zero where the layer does not say what it is, as in the course."""
    if not all(hasattr(layer, a) for a in ("in_channels", "out_channels", "kernel_size")):
        return 0
    dims = layers.convolution_dims(layer)
    transposed = "Transpose" in layers.type_name(layer)
    positions = shape[-dims:] if transposed else spatial_size(layer, shape[-dims:])
    samples = prod(shape[: -dims - 1])
    window = prod(each(layer.kernel_size, dims)) * layer.in_channels // _setting(layer, "groups", 1)
    return int(2 * samples * prod(positions) * window * layer.out_channels)


def attention_flops(groups: int, queries: int, keys: int, width: int) -> int:
    """Scores, then their product with the values; `width` is over all heads, the mask ignored."""
    return 2 * (2 * groups * queries * keys * width)


def layer_count(layer: Any, shape: Shape, output: Shape | None = None) -> Count:
    """One layer with no layers inside."""
    if layers.is_convolution(layer):
        return _product(convolution_flops(layer, shape))
    if layers.is_linear(layer):
        return _product(linear_flops(layer, shape))
    held = layers.matrices(layer)
    if held and not layers.is_lookup(layer) and _leads(held, shape, output):
        # Hand-written layers (x @ W1, then @ W2): each matrix once for each row of the input.
        flops = sum(2 * prod(matrix) for matrix in held) * prod(shape[:-1])
        if layers.is_attention(layer) and len(shape) > 1:
            flops += attention_flops(prod(shape[:-2]), shape[-2], shape[-2], shape[-1])
        return _product(flops)
    return Count(prod(output if output and layers.is_lookup(layer) else shape), 0)


def _leads(held: list[Shape], shape: Shape, output: Shape | None) -> bool:
    """Whether products with these matrices can lead from the input to the output."""
    if not shape or not any(shape[-1] in matrix for matrix in held):
        return False
    if not output:
        return True
    if len(held) == 1:
        return sorted(held[0]) == sorted((shape[-1], output[-1]))
    return any(output[-1] in matrix for matrix in held)


def stack_count(stack: Iterable[Any], shape: Shape) -> Count:
    """Layers one after another, each on the shape the one before it leaves."""
    total = NOTHING
    for layer in stack:
        inner = layers.stack(layer)
        total = total.plus(stack_count(inner, shape) if inner else layer_count(layer, shape))
        shape = output_shape(layer, shape)
    return total


def output_shape(layer: Any, shape: Shape) -> Shape:
    inner = layers.stack(layer)
    if inner:
        for each_layer in inner:
            shape = output_shape(each_layer, shape)
        return shape
    if layers.is_convolution(layer) or layers.is_pooling(layer):
        dims = layers.convolution_dims(layer)
        channels = getattr(layer, "out_channels", shape[-dims - 1])
        return (*shape[: -dims - 1], channels, *spatial_size(layer, shape[-dims:]))
    if layers.is_linear(layer):
        return (*shape[:-1], out_features(layer, shape[-1]))
    if layers.type_name(layer) == "Flatten":
        return (shape[0], prod(shape[1:]))
    weight = shape_of(getattr(layer, "weight", None))
    if weight is not None and len(weight) == 2:
        return (*shape, weight[1]) if layers.is_lookup(layer) else (*shape[:-1], weight[1])
    return shape


def spatial_size(layer: Any, size: Shape) -> Shape:
    """Where the layer has no `padding` attribute, `in // stride` as in the course: it pictures a
    convolution that keeps its size."""
    dims = len(size)
    kernel = each(layer.kernel_size, dims)
    default_stride = layer.kernel_size if layers.is_pooling(layer) else 1
    stride = each(_setting(layer, "stride", default_stride), dims)
    padding = getattr(layer, "padding", None)
    if padding is None or padding == "same":
        return tuple(-(-n // s) if padding else n // s for n, s in zip(size, stride, strict=True))
    pad = each(0 if padding == "valid" else padding, dims)
    dilation = each(_setting(layer, "dilation", 1), dims)
    if "Transpose" in layers.type_name(layer):
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
    """A setting for each dimension: one number stands for all."""
    return tuple(value) if isinstance(value, (tuple, list)) else (int(value),) * dims


def _setting(layer: Any, name: str, default: Any) -> Any:
    value = getattr(layer, name, None)
    return default if value is None else value


def _product(flops: int) -> Count:
    return Count(flops, flops)

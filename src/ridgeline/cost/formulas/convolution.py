"""Convolutions. Forward: every output element meets its kernel once; a transposed one, every input
element. Backward: the same work once for the input's gradient and once for the weight's."""

from math import prod
from typing import Any

from ridgeline.cost.formulas.call import Call, Tensor, Work
from ridgeline.cost.formulas.registry import formula


def _per_dim(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * dims if len(values) == 1 else values


def output_sites(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any
) -> tuple[int, ...]:
    """Spatial size of what a (not transposed) convolution gives."""
    spatial, kernel = x.shape[2:], weight.shape[2:]
    dims = len(spatial)
    steps = zip(
        spatial, kernel, _per_dim(stride, dims), _per_dim(padding, dims), _per_dim(dilation, dims),
        strict=True,
    )  # fmt: skip
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in steps)


def _macs(x: Tensor, weight: Tensor, sites: tuple[int, ...], transposed: bool) -> int:
    complex_factor = 4 if x.is_complex else 1
    if transposed:  # weight is [in, out / groups, kernel…]: each input element meets all of it
        return x.numel * prod(weight.shape[1:]) * complex_factor
    return x.shape[0] * prod(sites) * weight.numel * complex_factor


@formula("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(1)
    transposed = bool(call.get("transposed", 6, False))
    sites = output_sites(
        x, weight, call.get("stride", 3), call.get("padding", 4), call.get("dilation", 5)
    )
    bias = call.get("bias", 2)
    out = call.outputs[0].numel if call.outputs else x.shape[0] * weight.shape[0] * prod(sites)
    return Work(
        macs=_macs(x, weight, sites, transposed),
        other_flops=out if isinstance(bias, Tensor) else 0,
    )


@formula("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(call: Call) -> Work:
    grad, x, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    transposed = bool(call.get("transposed", 7, False))
    mask = call.get("output_mask", 10) or (True, True, True)
    once = _macs(x, weight, grad.shape[2:], transposed)
    return Work(
        macs=once * (bool(mask[0]) + bool(mask[1])),
        other_flops=grad.numel if len(mask) > 2 and mask[2] else 0,
    )


@formula(
    "aten::mkldnn_convolution",
    "aten::cudnn_convolution",
    "aten::miopen_convolution",
    "aten::miopen_depthwise_convolution",
    "aten::cudnn_convolution_relu",
    "aten::cudnn_convolution_add_relu",
    "mkldnn::_convolution_pointwise",
    "aten::slow_conv3d_forward",
    "aten::_slow_conv2d_forward",
    "aten::slow_conv_dilated2d",
    "aten::slow_conv_dilated3d",
    "aten::conv_depthwise3d",
    "aten::_conv_depthwise2d",
)
def backend_convolution(call: Call) -> Work:
    """A backend's own entry point: the result says how often the kernel was applied."""
    weight = call.tensor(1)
    return Work(macs=call.outputs[0].numel * weight.numel // weight.shape[0])


@formula(
    "aten::cudnn_convolution_transpose",
    "aten::miopen_convolution_transpose",
    "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d",
)
def backend_transposed_convolution(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(1)
    return Work(macs=x.numel * prod(weight.shape[1:]))

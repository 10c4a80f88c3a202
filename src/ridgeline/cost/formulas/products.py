"""Formulas for products: matrix products, convolutions, quantised and recurrent layers, transforms
and factorisations. A complex multiply-accumulate is four real ones."""

from functools import partial
from math import log2, prod
from typing import Any

from ridgeline.cost.formulas.call import Call, Tensor, Work, formula

_matmul = partial(formula, family="matmul")
_convolution = partial(formula, family="convolution")
_quantized = partial(formula, family="quantized")
_recurrent = partial(formula, family="recurrent")
_transform = partial(formula, family="transform")


def _macs(a: Tensor, columns: int) -> int:
    """Return the MACs of a product: each element of `a` (each stored one, if it is sparse) is
    multiplied once for each column."""
    elements = a.numel if a.stored is None else a.stored
    return elements * columns * (4 if a.is_complex else 1)


def _product_macs(a: Tensor, b: Tensor) -> int:
    if (
        b.stored is not None and a.stored is None
    ):  # dense x sparse: each stored element is used for each row
        return _macs(b, a.shape[-2])
    return _macs(a, b.shape[-1])


@_matmul("aten::mm", "aten::_int_mm", "aten::_scaled_mm", "aten::bmm", "aten::_sparse_mm")
def product(call: Call) -> Work:
    return Work(macs=_product_macs(call.tensor(0), call.tensor(1)))


@_matmul("aten::addmm", "aten::_addmm_activation", "aten::baddbmm", "aten::_sparse_addmm")
def product_and_add(call: Call) -> Work:
    a, b = call.tensor(1), call.tensor(2)
    return Work(macs=_product_macs(a, b), other_flops=prod(a.shape[:-1]) * b.shape[-1])


@_matmul("aten::addbmm")
def products_summed(call: Call) -> Work:
    a, b = call.tensor(1), call.tensor(2)
    return Work(macs=_macs(a, b.shape[-1]))


@_matmul("aten::mv", "aten::dot", "aten::vdot")
def vector_product(call: Call) -> Work:
    return Work(macs=_macs(call.tensor(0), 1))


@_matmul("aten::addmv")
def vector_product_and_add(call: Call) -> Work:
    matrix = call.tensor(1)
    return Work(macs=_macs(matrix, 1), other_flops=matrix.shape[0])


@_matmul("aten::addr")
def outer_and_add(call: Call) -> Work:
    rows, columns = call.tensor(1), call.tensor(2)
    return Work(macs=_macs(rows, columns.numel))


@_matmul("aten::linear", "aten::mkldnn_linear", "mkldnn::_linear_pointwise")
def linear(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(1)
    return Work(macs=_macs(x, weight.shape[0]))


@_matmul("aten::linear_backward", "aten::mkldnn_linear_backward")
def linear_backward(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(2)
    mask = call.get("output_mask", 3) or (True, True)
    return Work(macs=_macs(x, weight.shape[0]) * sum(bool(m) for m in mask[:2]))


@_matmul("aten::_grouped_mm", "aten::_scaled_grouped_mm")
def grouped_product(call: Call) -> Work:
    """Each row of a two-dimensional operand belongs to one group only."""
    a, b = call.tensor(0), call.tensor(1)
    return Work(macs=_macs(a, b.shape[-1]))


@_matmul("aten::_weight_int8pack_mm")
def int8_weight_product(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(1)  # weight is [out, in]
    return Work(macs=x.numel * weight.shape[0])


@_matmul(
    "aten::_weight_int4pack_mm",
    "aten::_weight_int4pack_mm_for_cpu",
    "aten::_weight_int4pack_mm_with_scales_and_zeros",
)
def int4_weight_product(call: Call) -> Work:
    """The shape of the packed weight is not known, so the columns of the result are used."""
    x = call.tensor(0)
    return Work(macs=x.numel * call.outputs[0].shape[-1])


@_matmul("aten::_trilinear")
def trilinear(call: Call) -> Work:
    """Multiply three broadcast operands and sum: one MAC and one more multiply each."""
    shapes: list[tuple[int, ...]] = []
    for operand, name, index in ((0, "expand1", 3), (1, "expand2", 4), (2, "expand3", 5)):
        shape = list(call.tensor(operand).shape)
        for dim in sorted(call.get(name, index)):
            shape.insert(dim, 1)
        shapes.append(tuple(shape))
    volume = prod(max(sizes) for sizes in zip(*shapes, strict=True))
    return Work(macs=volume, other_flops=volume)


@_matmul("aten::_cdist_forward", "aten::_euclidean_dist")
def pairwise_distance(call: Call) -> Work:
    """A difference and a multiply-accumulate for each pair and coordinate, then a root."""
    x, y = call.tensor(0), call.tensor(1)
    pairs = max(prod(x.shape[:-2]), prod(y.shape[:-2])) * x.shape[-2] * y.shape[-2]
    volume = pairs * x.shape[-1]
    return Work(macs=volume, other_flops=volume + pairs)


@_matmul("aten::_cdist_backward")
def pairwise_distance_backward(call: Call) -> Work:
    x, y = call.tensor(1), call.tensor(2)
    pairs = max(prod(x.shape[:-2]), prod(y.shape[:-2])) * x.shape[-2] * y.shape[-2]
    return Work(macs=pairs * x.shape[-1], other_flops=2 * pairs * x.shape[-1])


@_matmul("aten::_pdist_forward")
def own_distances(call: Call) -> Work:
    rows, width = call.tensor(0).shape
    pairs = rows * (rows - 1) // 2
    return Work(macs=pairs * width, other_flops=pairs * (width + 1))


def _per_dim(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * dims if len(values) == 1 else values


def output_sites(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any
) -> tuple[int, ...]:
    """Return the spatial size of the output of a convolution that is not transposed."""
    spatial, kernel = x.shape[2:], weight.shape[2:]
    dims = len(spatial)
    steps = zip(
        spatial, kernel, _per_dim(stride, dims), _per_dim(padding, dims), _per_dim(dilation, dims),
        strict=True,
    )  # fmt: skip
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in steps)


def _convolution_macs(x: Tensor, weight: Tensor, sites: tuple[int, ...], transposed: bool) -> int:
    complex_factor = 4 if x.is_complex else 1
    if transposed:  # weight is [in, out / groups, kernel…], and is used for each input element
        return x.numel * prod(weight.shape[1:]) * complex_factor
    return x.shape[0] * prod(sites) * weight.numel * complex_factor


@_convolution("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(1)
    transposed = bool(call.get("transposed", 6, False))
    sites = output_sites(
        x, weight, call.get("stride", 3), call.get("padding", 4), call.get("dilation", 5)
    )
    bias = call.get("bias", 2)
    out = call.outputs[0].numel if call.outputs else x.shape[0] * weight.shape[0] * prod(sites)
    return Work(
        macs=_convolution_macs(x, weight, sites, transposed),
        other_flops=out if isinstance(bias, Tensor) else 0,
    )


@_convolution("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(call: Call) -> Work:
    grad, x, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    transposed = bool(call.get("transposed", 7, False))
    mask = call.get("output_mask", 10) or (True, True, True)
    once = _convolution_macs(x, weight, grad.shape[2:], transposed)
    return Work(
        macs=once * (bool(mask[0]) + bool(mask[1])),
        other_flops=grad.numel if len(mask) > 2 and mask[2] else 0,
    )


@_convolution(
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
    """The operators of one backend. The result's size shows how often the kernel was applied."""
    weight = call.tensor(1)
    return Work(macs=call.outputs[0].numel * weight.numel // weight.shape[0])


@_convolution(
    "aten::cudnn_convolution_transpose",
    "aten::miopen_convolution_transpose",
    "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d",
)
def backend_transposed_convolution(call: Call) -> Work:
    x, weight = call.tensor(0), call.tensor(1)
    return Work(macs=x.numel * prod(weight.shape[1:]))


@_quantized(
    "quantized::linear",
    "quantized::linear_relu",
    "quantized::linear_dynamic",
    "quantized::linear_relu_dynamic",
    "quantized::linear_dynamic_fp16",
    "quantized::linear_relu_dynamic_fp16",
    "quantized::linear_leaky_relu",
    "quantized::linear_tanh",
)
def quantized_linear(call: Call) -> Work:
    x, weight = call.tensor(0), call.args[1]
    columns = weight.shape[0] if isinstance(weight, Tensor) else call.outputs[0].shape[-1]
    return Work(macs=x.numel * columns)


@_quantized("onednn::qlinear_pointwise")
def onednn_linear(call: Call) -> Work:
    return Work(macs=call.tensor(0).numel * call.outputs[0].shape[-1])


@_quantized(
    "quantized::conv1d",
    "quantized::conv2d",
    "quantized::conv3d",
    "quantized::conv1d_relu",
    "quantized::conv2d_relu",
    "quantized::conv3d_relu",
    "quantized::conv2d_add",
    "quantized::conv2d_add_relu",
)
def quantized_convolution(call: Call) -> Work:
    weight = call.args[1]
    if not isinstance(weight, Tensor):
        raise TypeError(f"{call.op}: the packed weight could not be read")
    return Work(macs=call.outputs[0].numel * weight.numel // weight.shape[0])


GATE_FLOPS = 10
"""The approximate elementwise FLOPs of a cell for each hidden unit: two or three sigmoids, a tanh,
and the products and sums of the state."""


def _steps(x: Tensor) -> int:
    """Return time steps x batch, which is the number of rows of a packed sequence."""
    return prod(x.shape[:-1])


def _matrices(weights: list[Tensor] | tuple[Tensor, ...]) -> int:
    return sum(w.numel for w in weights if isinstance(w, Tensor) and len(w.shape) == 2)


@_recurrent("aten::mkldnn_rnn_layer")
def onednn_layer(call: Call) -> Work:
    x, input_weight, hidden_weight = call.tensor(0), call.tensor(1), call.tensor(2)
    steps = _steps(x)
    return Work(
        macs=steps * _matrices((input_weight, hidden_weight)),
        other_flops=steps * hidden_weight.shape[-1] * GATE_FLOPS,
    )


@_recurrent("aten::mkldnn_rnn_layer_backward")
def onednn_layer_backward(call: Call) -> Work:
    forward = onednn_layer(call)
    return Work(macs=2 * forward.macs, other_flops=2 * forward.other_flops)


@_recurrent("aten::_cudnn_rnn", "aten::miopen_rnn")
def packed_rnn(call: Call) -> Work:
    weights = call.args[1]
    return _packed(call.tensor(0), weights, 1)


@_recurrent("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward")
def packed_rnn_backward(call: Call) -> Work:
    """Gradients of the input and the state, and those of the weights if the mask asks for them."""
    mask = call.get("output_mask", 21) or (True, True, True, True)
    return _packed(call.tensor(0), call.args[1], 2 if mask[-1] else 1)


def _packed(x: Tensor, weights: list[Tensor], times: int) -> Work:
    steps = _steps(x)
    hidden = sum(w.shape[-1] for w in weights if isinstance(w, Tensor) and len(w.shape) == 2)
    return Work(
        macs=times * steps * _matrices(weights), other_flops=times * steps * hidden * GATE_FLOPS
    )


@_recurrent("aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_gru_cell")
def fused_cell(call: Call) -> Work:
    """The gates only; their matrix products are separate operators."""
    return Work(other_flops=call.tensor(0).numel * 3)


@_recurrent(
    "aten::_thnn_fused_lstm_cell_backward",
    "aten::_thnn_fused_lstm_cell_backward_impl",
    "aten::_thnn_fused_gru_cell_backward",
    "aten::_thnn_differentiable_lstm_cell_backward",
    "aten::_thnn_differentiable_gru_cell_backward",
)
def fused_cell_backward(call: Call) -> Work:
    return Work(other_flops=2 * call.elements * GATE_FLOPS)


def _fft_flops(elements: int, points: int, per_point: float) -> int:
    return round(per_point * elements * log2(points)) if points > 1 else 0


def _points(call: Call, shape: tuple[int, ...]) -> int:
    return prod(shape[d] for d in call.get("dim", 1))


@_transform("aten::_fft_c2c")
def complex_fft(call: Call) -> Work:
    x = call.tensor(0)
    return Work(transform_flops=_fft_flops(x.numel, _points(call, x.shape), 5))


@_transform("aten::_fft_r2c")
def real_fft(call: Call) -> Work:
    x = call.tensor(0)
    return Work(transform_flops=_fft_flops(x.numel, _points(call, x.shape), 2.5))


@_transform("aten::_fft_c2r")
def inverse_real_fft(call: Call) -> Work:
    shape = list(call.tensor(0).shape)
    shape[call.get("dim", 1)[-1]] = call.get("last_dim_size", 3)
    return Work(transform_flops=_fft_flops(prod(shape), _points(call, tuple(shape)), 2.5))


@_transform("aten::linalg_cholesky_ex", "aten::cholesky", "aten::_linalg_check_errors_cholesky")
def cholesky(call: Call) -> Work:
    a = call.tensor(0)
    return Work(transform_flops=a.numel * a.shape[-1] // 3)


@_transform(
    "aten::linalg_lu_factor_ex", "aten::_linalg_det", "aten::_linalg_slogdet", "aten::linalg_lu"
)
def lu(call: Call) -> Work:
    a = call.tensor(0)
    return Work(transform_flops=2 * a.numel * a.shape[-1] // 3)


@_transform("aten::linalg_inv_ex")
def inverse(call: Call) -> Work:
    a = call.tensor(0)
    return Work(transform_flops=2 * a.numel * a.shape[-1])


@_transform("aten::_linalg_solve_ex")
def solve(call: Call) -> Work:
    a, b = call.tensor(0), call.tensor(1)
    return Work(transform_flops=2 * a.numel * a.shape[-1] // 3 + 2 * b.numel * a.shape[-1])


@_transform("aten::linalg_lu_solve", "aten::cholesky_solve")
def solve_factored(call: Call) -> Work:
    factor, b = sorted((t for t in call.tensors if len(t.shape) >= 2), key=lambda t: -t.numel)[:2]
    return Work(transform_flops=2 * b.numel * factor.shape[-1])


@_transform("aten::linalg_solve_triangular", "aten::triangular_solve")
def solve_triangular(call: Call) -> Work:
    first, second = call.tensor(0), call.tensor(1)
    triangle, b = (second, first) if call.op.endswith("triangular_solve") else (first, second)
    return Work(transform_flops=b.numel * triangle.shape[-1])


@_transform("aten::linalg_qr")
def qr(call: Call) -> Work:
    a = call.tensor(0)
    *batch, m, n = a.shape
    small = min(m, n)
    return Work(transform_flops=prod(batch) * (2 * m * n * small - 2 * small**3 // 3))

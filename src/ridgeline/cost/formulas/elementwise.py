"""Formulas for elementwise operators: a number of operations per element.

The number is how many arithmetic operations the definition has, a transcendental (exp, erf, tanh,
sqrt) being one. That is a convention: these numbers enter `all_flops` only, never `flops`.
Selecting, comparing bits and logic do no arithmetic and cost nothing but their bytes.
"""

from functools import partial
from math import log2, prod

from ridgeline.cost.formulas.call import Call, Formula, Tensor, Work, formula

_elementwise = partial(formula, family="elementwise")
_reduction = partial(formula, family="reduction")
_movement = partial(formula, family="movement")

_OPERATIONS = {
    0: "where masked_fill logical_and logical_not logical_or logical_xor bitwise_and bitwise_not "
    "bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ "
    "__ilshift__ __irshift__ __xor__ __ixor__ __and__ __or__ isfinite isinf isnan isneginf "
    "isposinf signbit positive conj_physical nan_to_num frexp nextafter copysign "
    "masked_scatter",
    1: "abs add sub rsub mul div true_divide floor_divide pow float_power neg reciprocal sqrt "
    "rsqrt square exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh atan2 erf erfc erfinv ceil floor round trunc frac sign sgn maximum minimum "
    "fmax fmin max min clamp_max clamp_min relu threshold threshold_backward eq ne lt le gt ge "
    "fmod remainder heaviside gcd lcm angle hardshrink softshrink deg2rad rad2deg lgamma digamma "
    "polygamma mvlgamma i0 igamma igammac special_i0e special_i1 special_i1e special_erfcx "
    "special_ndtri special_log_ndtr special_zeta special_airy_ai special_bessel_j0 "
    "special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t "
    "special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w "
    "special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l "
    "special_legendre_polynomial_p special_modified_bessel_i0 special_modified_bessel_i1 "
    "special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0 "
    "special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t "
    "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
    "special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 hardtanh_backward "
    "hardshrink_backward softshrink_backward",
    2: "clamp clip hardtanh relu6 leaky_relu ldexp xlogy special_xlog1py special_entr sinc "
    "native_dropout_backward leaky_relu_backward prelu _prelu_kernel rrelu rrelu_with_noise "
    "clamp_backward dropout",
    3: "sigmoid addcmul addcdiv lerp elu celu selu softplus hypot hardsigmoid logit "
    "sigmoid_backward tanh_backward elu_backward hardsigmoid_backward softplus_backward "
    "logit_backward log_sigmoid_forward glu _prelu_kernel_backward native_dropout logaddexp2",
    4: "silu hardswish logaddexp log_sigmoid_backward hardswish_backward",
    5: "gelu mish glu_backward glu_jvp",
    6: "silu_backward",
    8: "gelu_backward mish_backward",
}


def _each(operations: int) -> Formula:
    def elementwise(call: Call) -> Work:
        # max(dim) and similar operators reduce: their work is the number of elements they read.
        elements = max((t.numel for t in call.tensors), default=0)
        return Work(other_flops=operations * max(elements, call.elements))

    return elementwise


for _operations, _names in _OPERATIONS.items():
    _elementwise(*(f"aten::{name}" for name in _names.split()))(_each(_operations))


# operations for each element of the first tensor
_FOR_EACH_READ = {
    0: "any all nonzero unique_dim _unique2 unique_consecutive count_nonzero is_nonzero bincount "
    "equal",
    1: "sum nansum prod amax amin argmax argmin aminmax cumsum cumprod cummax cummin trace "
    "logcumsumexp _cummax_helper _cummin_helper mode "
    "mean adaptive_avg_pool1d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d "
    "adaptive_max_pool3d median nanmedian kthvalue histc segment_reduce "
    "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward mkldnn_adaptive_avg_pool2d",
    2: "linalg_vector_norm norm renorm dist binary_cross_entropy_with_logits_backward "
    "_log_softmax_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward "
    "binary_cross_entropy_backward",
    3: "logsumexp std var var_mean std_mean mse_loss l1_loss smooth_l1_loss huber_loss "
    "_weight_norm_interface embedding_renorm multi_margin_loss multilabel_margin_loss_forward "
    "fractional_max_pool2d fractional_max_pool3d",
    4: "_softmax_backward_data _log_softmax_backward_data _native_batch_norm_legit_no_training "
    "_fused_rms_norm rms_norm _masked_softmax_backward soft_margin_loss batch_norm_elemt "
    "batch_norm_backward_elemt _weight_norm_interface_backward",
    5: "_softmax _log_softmax softmax log_softmax _safe_softmax _masked_softmax _sparse_softmax "
    "binary_cross_entropy binary_cross_entropy_with_logits kl_div soft_margin_loss_backward",
    7: "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_stats _batch_norm_with_update _batch_norm_no_update "
    "cudnn_batch_norm miopen_batch_norm native_layer_norm native_group_norm batch_norm_stats "
    "mkldnn_batch_norm",
    8: "_fused_rms_norm_backward",
    11: "native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward "
    "miopen_batch_norm_backward native_layer_norm_backward native_group_norm_backward "
    "batch_norm_backward_reduce",
}

# operations for each element of the result
_FOR_EACH_WRITTEN = {
    1: "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
    "_upsample_nearest_exact2d_backward col2im max_pool2d_with_indices_backward "
    "max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward "
    "adaptive_max_pool2d_backward adaptive_max_pool3d_backward fractional_max_pool2d_backward "
    "fractional_max_pool3d_backward rrelu_with_noise_backward nll_loss_backward "
    "nll_loss2d_backward max_unpool2d",
    3: "upsample_linear1d linspace logspace upsample_linear1d_backward",
    7: "upsample_bilinear2d _upsample_bilinear2d_aa upsample_bilinear2d_backward "
    "_upsample_bilinear2d_aa_backward multi_margin_loss_backward "
    "multilabel_margin_loss_backward",
    12: "grid_sampler_2d upsample_trilinear3d upsample_trilinear3d_backward "
    "grid_sampler_2d_backward",
    30: "grid_sampler_3d grid_sampler_3d_backward upsample_bicubic2d _upsample_bicubic2d_aa "
    "upsample_bicubic2d_backward",
}


def _read(operations: int) -> Formula:
    def reduction(call: Call) -> Work:
        return Work(other_flops=operations * max((t.numel for t in call.tensors), default=0))

    return reduction


def _written(operations: int) -> Formula:
    def production(call: Call) -> Work:
        return Work(other_flops=operations * call.elements)

    return production


for _operations, _names in _FOR_EACH_READ.items():
    _reduction(*(f"aten::{name}" for name in _names.split()))(_read(_operations))
for _operations, _names in _FOR_EACH_WRITTEN.items():
    _reduction(*(f"aten::{name}" for name in _names.split()))(_written(_operations))


@_reduction(
    "aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices", "aten::avg_pool2d",
    "aten::avg_pool3d", "aten::avg_pool1d", "aten::max_pool1d", "aten::mkldnn_max_pool2d",
    "aten::mkldnn_avg_pool2d", "aten::max_pool2d", "aten::quantized_max_pool2d",
)  # fmt: skip
def pooling(call: Call) -> Work:
    kernel = call.get("kernel_size", 1)
    window = prod(kernel) if isinstance(kernel, list | tuple) else int(kernel)
    dims = 3 if "3d" in call.op else 1 if "1d" in call.op else 2
    if isinstance(kernel, list | tuple) and len(kernel) == 1:
        window = window**dims
    return Work(other_flops=call.elements * window)


@_reduction("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss(call: Call) -> Work:
    """One log-probability is picked for each target; the other scores are not read."""
    scores, targets = call.tensor(0), call.tensor(1)
    picked = targets.numel * scores.nbytes // max(scores.numel, 1)
    return Work(other_flops=2 * targets.numel, read_bytes=targets.nbytes + picked)


@_reduction("aten::sort", "aten::topk", "aten::argsort", "aten::msort", "aten::searchsorted")
def sorting(call: Call) -> Work:
    """Sorting takes n log2 n comparisons along the sorted dimension."""
    shape = call.tensor(0).shape
    dim = call.get("dim", 2 if call.op.endswith(("topk", "topk_")) else 1, -1)
    length = shape[dim if isinstance(dim, int) and dim < len(shape) else -1] if shape else 1
    return Work(other_flops=round(prod(shape) * log2(length)) if length > 1 else 0)


@_reduction("aten::affine_grid_generator")
def affine_grid(call: Call) -> Work:
    """Each point of the grid (homogeneous, so one coordinate more) times the matrix."""
    theta = call.tensor(0)
    points = prod(call.get("size", 1)[2:])
    return Work(macs=theta.numel * points)


@_reduction("aten::_ctc_loss", "aten::_ctc_loss_backward")
def ctc_loss(call: Call) -> Work:
    """Time steps x (2 labels + 1) states, each from three before it, in the log domain."""
    log_probabilities, targets = [t for t in call.tensors if len(t.shape) >= 1][:2]
    if call.op.endswith("backward"):
        log_probabilities, targets = call.tensor(1), call.tensor(2)
    steps = log_probabilities.shape[0]
    return Work(other_flops=steps * (2 * targets.numel + 1) * 8)


@_reduction("aten::_amp_foreach_non_finite_check_and_unscale", "aten::_amp_update_scale")
def loss_scale(call: Call) -> Work:
    return Work(other_flops=2 * sum(t.numel for t in call.tensors))


_FREE = Work()

_MOVES = (
    # copies and layout
    "clone copy _to_copy to contiguous cat stack constant_pad_nd pad reflection_pad1d "
    "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d flip "
    "roll rot90 repeat repeat_interleave tile tril triu _nested_tensor_from_mask "
    "_nested_tensor_from_mask_left_aligned nested_to_padded_tensor _nested_from_padded "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "_upsample_nearest_exact2d im2col channel_shuffle pixel_shuffle pixel_unshuffle slice_backward "
    "select_backward slice_scatter select_scatter diagonal_scatter as_strided_scatter "
    "diagonal_backward unfold_backward value_selecting_reduction_backward _unsafe_index_put "
    "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
    "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward diag_embed "
    "diagonal_copy "
    "_pack_padded_sequence _pad_packed_sequence _transform_bias_rescale_qkv resize resize_as set "
    "_fw_primal complex polar view_as_complex_copy _conj_physical "
    # creating tensors
    "zeros ones full arange eye empty empty_like empty_strided empty_permuted new_empty "
    "new_empty_strided zeros_like ones_like full_like new_zeros new_ones new_full fill zero "
    "scalar_tensor tril_indices triu_indices one_hot range "
    "rand randn randint randperm rand_like randn_like randint_like bernoulli normal uniform "
    "random exponential cauchy geometric log_normal multinomial _efficientzerotensor "
    # reading values and properties
    "_local_scalar_dense item detach lift_fresh lift_fresh_copy lift _assert_async "
    "_assert_tensor_metadata _functional_assert_async is_same_size resolve_conj resolve_neg "
    "_linalg_check_errors _indices _values indices values crow_indices col_indices "
    "ccol_indices row_indices _sparse_coo_tensor_with_dims_and_tensors _coalesced _nnz "
    "_sparse_compressed_tensor_unsafe _has_same_storage_numel is_coalesced sparse_dim "
    "record_stream _pin_memory pin_memory "
    "_has_compatible_shallow_copy_type _version "
    # views: a live model recognises them by their storage, a trace only by these names
    "view _unsafe_view reshape _reshape_alias expand slice select unsqueeze squeeze permute "
    "transpose t split split_with_sizes unbind chunk as_strided alias diagonal unfold narrow "
    "view_as_real view_as_complex flatten unflatten real imag _conj _neg_view movedim swapaxes "
    # quantisation scales and rounds, which is too little work to count
    "quantize_per_tensor quantize_per_channel dequantize quantize_per_tensor_dynamic "
    "_empty_affine_quantized int_repr q_scale q_zero_point choose_qparams_optimized "
    "_make_per_tensor_quantized_tensor"
)
_movement(*(f"aten::{name}" for name in _MOVES.split()))(lambda call: _FREE)

_COLLECTIVES = (
    "all_reduce all_reduce_coalesced all_gather_into_tensor all_gather_into_tensor_coalesced "
    "reduce_scatter_tensor reduce_scatter_tensor_coalesced all_to_all_single broadcast "
    "wait_tensor _wrap_tensor_autograd"
)
_movement(*(f"_c10d_functional::{name}" for name in _COLLECTIVES.split()))(lambda call: _FREE)
_movement(
    "fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "fsdp::chunk_cat",
    "aten::split_with_sizes_copy", "aten::_chunk_cat", "c10d::allreduce", "c10d::broadcast",
    "c10d::_allgather_base", "c10d::_reduce_scatter_base", "c10d::barrier",
)(lambda call: _FREE)  # fmt: skip


def _index_bytes(call: Call) -> int:
    return sum(t.nbytes for t in call.tensors[1:] if _is_index(t))


def _is_index(tensor: Tensor) -> bool:
    return tensor.dtype.startswith(("int", "bool", "uint"))


@_movement(
    "aten::embedding", "aten::index", "aten::gather", "aten::index_select", "aten::take",
    "aten::masked_select", "aten::_unsafe_index", "aten::take_along_dim",
)  # fmt: skip
def gather(call: Call) -> Work:
    """Count the rows that are picked, not the whole table."""
    picked = sum(t.nbytes for t in call.outputs)
    return Work(read_bytes=_index_bytes(call) + picked)


@_movement("aten::index_put", "aten::_index_put_impl", "aten::scatter", "aten::index_copy",
         "aten::index_fill", "aten::put", "aten::masked_scatter")  # fmt: skip
def scatter(call: Call) -> Work:
    """Count the given rows where they are written in place, not the whole table."""
    source = sum(t.nbytes for t in call.tensors[1:])
    values = max((t.nbytes for t in call.tensors[1:] if not _is_index(t)), default=0)
    return Work(read_bytes=source, written_bytes=values if call.op.endswith("_") else None)


@_movement(
    "aten::scatter_add", "aten::index_add", "aten::scatter_reduce",
    "aten::embedding_dense_backward", "aten::index_reduce", "aten::_index_put_accumulate",
)  # fmt: skip
def scatter_add(call: Call) -> Work:
    if call.op.endswith("embedding_dense_backward"):
        return Work(other_flops=call.tensor(0).numel)
    added = max((t.numel for t in call.tensors[1:]), default=0)
    if not call.op.endswith("_"):
        return Work(other_flops=added)
    values = max((t.nbytes for t in call.tensors[1:] if not _is_index(t)), default=0)
    source = sum(t.nbytes for t in call.tensors[1:])
    return Work(other_flops=added, read_bytes=source + values, written_bytes=values)


@_movement("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(call: Call) -> Work:
    """Sums one row of the table for each index."""
    table, indices = call.tensor(0), call.tensor(1)
    summed = indices.numel * table.shape[1]
    item = table.nbytes // max(table.numel, 1)
    return Work(other_flops=summed, read_bytes=summed * item + indices.nbytes)


@_movement("aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward")
def embedding_bag_backward(call: Call) -> Work:
    return Work(other_flops=call.tensor(1).numel * call.tensor(0).shape[-1])


@_movement(
    "aten::_fused_adam", "aten::_fused_adamw", "aten::_fused_sgd", "aten::_fused_adagrad",
)  # fmt: skip
def fused_optimizer(call: Call) -> Work:
    """One pass over parameters, gradients and state: about a dozen operations a parameter for
    Adam's moments, a quarter of that for SGD."""
    parameters = sum(t.numel for t in call.args[0])
    return Work(other_flops=parameters * (12 if "adam" in call.op else 4))

"""Reductions, scans, norms, softmax, losses, pooling and sampling: so many operations for each
element read, or for each one written. A convention, as for elementwise work: `all_flops` only."""

from math import log2, prod

from ridgeline.cost.formulas.call import Call, Work
from ridgeline.cost.formulas.registry import Formula, formula

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
    formula(*(f"aten::{name}" for name in _names.split()))(_read(_operations))
for _operations, _names in _FOR_EACH_WRITTEN.items():
    formula(*(f"aten::{name}" for name in _names.split()))(_written(_operations))


@formula(
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


@formula("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss(call: Call) -> Work:
    """One picked log-probability for each target: the rest of the scores are not read."""
    scores, targets = call.tensor(0), call.tensor(1)
    picked = targets.numel * scores.nbytes // max(scores.numel, 1)
    return Work(other_flops=2 * targets.numel, read_bytes=targets.nbytes + picked)


@formula("aten::sort", "aten::topk", "aten::argsort", "aten::msort", "aten::searchsorted")
def sorting(call: Call) -> Work:
    """Comparisons, n log2 n of them along the sorted dimension."""
    shape = call.tensor(0).shape
    dim = call.get("dim", 2 if call.op.endswith(("topk", "topk_")) else 1, -1)
    length = shape[dim if isinstance(dim, int) and dim < len(shape) else -1] if shape else 1
    return Work(other_flops=round(prod(shape) * log2(length)) if length > 1 else 0)


@formula("aten::affine_grid_generator")
def affine_grid(call: Call) -> Work:
    """Each point of the grid (homogeneous, so one coordinate more) times the matrix."""
    theta = call.tensor(0)
    points = prod(call.get("size", 1)[2:])
    return Work(macs=theta.numel * points)


@formula("aten::_ctc_loss", "aten::_ctc_loss_backward")
def ctc_loss(call: Call) -> Work:
    """Time steps x (2 labels + 1) states, each from three before it, in the log domain."""
    log_probabilities, targets = [t for t in call.tensors if len(t.shape) >= 1][:2]
    if call.op.endswith("backward"):
        log_probabilities, targets = call.tensor(1), call.tensor(2)
    steps = log_probabilities.shape[0]
    return Work(other_flops=steps * (2 * targets.numel + 1) * 8)


@formula("aten::_amp_foreach_non_finite_check_and_unscale", "aten::_amp_update_scale")
def loss_scale(call: Call) -> Work:
    return Work(other_flops=2 * sum(t.numel for t in call.tensors))

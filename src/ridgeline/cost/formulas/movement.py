"""Operators that move or make data and compute nothing, and those that read only what they pick."""

from ridgeline.cost.formulas.call import Call, Tensor, Work
from ridgeline.cost.formulas.registry import formula

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
    # making
    "zeros ones full arange eye empty empty_like empty_strided empty_permuted new_empty "
    "new_empty_strided zeros_like ones_like full_like new_zeros new_ones new_full fill zero "
    "scalar_tensor tril_indices triu_indices one_hot range "
    "rand randn randint randperm rand_like randn_like randint_like bernoulli normal uniform "
    "random exponential cauchy geometric log_normal multinomial _efficientzerotensor "
    # looking
    "_local_scalar_dense item detach lift_fresh lift_fresh_copy lift _assert_async "
    "_assert_tensor_metadata _functional_assert_async is_same_size resolve_conj resolve_neg "
    "_linalg_check_errors _indices _values indices values crow_indices col_indices "
    "ccol_indices row_indices _sparse_coo_tensor_with_dims_and_tensors _coalesced _nnz "
    "_sparse_compressed_tensor_unsafe _has_same_storage_numel is_coalesced sparse_dim "
    "record_stream _pin_memory pin_memory "
    "_has_compatible_shallow_copy_type _version "
    # views, by name: a live model knows them by their storage, a trace only by this
    "view _unsafe_view reshape _reshape_alias expand slice select unsqueeze squeeze permute "
    "transpose t split split_with_sizes unbind chunk as_strided alias diagonal unfold narrow "
    "view_as_real view_as_complex flatten unflatten real imag _conj _neg_view movedim swapaxes "
    # quantisation is scaling and rounding: too small to call work
    "quantize_per_tensor quantize_per_channel dequantize quantize_per_tensor_dynamic "
    "_empty_affine_quantized int_repr q_scale q_zero_point choose_qparams_optimized "
    "_make_per_tensor_quantized_tensor"
)
formula(*(f"aten::{name}" for name in _MOVES.split()))(lambda call: _FREE)

_COLLECTIVES = (
    "all_reduce all_reduce_coalesced all_gather_into_tensor all_gather_into_tensor_coalesced "
    "reduce_scatter_tensor reduce_scatter_tensor_coalesced all_to_all_single broadcast "
    "wait_tensor _wrap_tensor_autograd"
)
formula(*(f"_c10d_functional::{name}" for name in _COLLECTIVES.split()))(lambda call: _FREE)
formula(
    "fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "fsdp::chunk_cat",
    "aten::split_with_sizes_copy", "aten::_chunk_cat", "c10d::allreduce", "c10d::broadcast",
    "c10d::_allgather_base", "c10d::_reduce_scatter_base", "c10d::barrier",
)(lambda call: _FREE)  # fmt: skip


def _index_bytes(call: Call) -> int:
    return sum(t.nbytes for t in call.tensors[1:] if _is_index(t))


def _is_index(tensor: Tensor) -> bool:
    return tensor.dtype.startswith(("int", "bool", "uint"))


@formula(
    "aten::embedding", "aten::index", "aten::gather", "aten::index_select", "aten::take",
    "aten::masked_select", "aten::_unsafe_index", "aten::take_along_dim",
)  # fmt: skip
def gather(call: Call) -> Work:
    """Reads the rows it picks, not the table."""
    picked = sum(t.nbytes for t in call.outputs)
    return Work(read_bytes=_index_bytes(call) + picked)


@formula("aten::index_put", "aten::_index_put_impl", "aten::scatter", "aten::index_copy",
         "aten::index_fill", "aten::put", "aten::masked_scatter")  # fmt: skip
def scatter(call: Call) -> Work:
    """In place it writes the rows it is given, not the table."""
    source = sum(t.nbytes for t in call.tensors[1:])
    values = max((t.nbytes for t in call.tensors[1:] if not _is_index(t)), default=0)
    return Work(read_bytes=source, written_bytes=values if call.op.endswith("_") else None)


@formula(
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


@formula("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(call: Call) -> Work:
    """Sums one row of the table for each index."""
    table, indices = call.tensor(0), call.tensor(1)
    summed = indices.numel * table.shape[1]
    item = table.nbytes // max(table.numel, 1)
    return Work(other_flops=summed, read_bytes=summed * item + indices.nbytes)


@formula("aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward")
def embedding_bag_backward(call: Call) -> Work:
    return Work(other_flops=call.tensor(1).numel * call.tensor(0).shape[-1])


@formula(
    "aten::_fused_adam", "aten::_fused_adamw", "aten::_fused_sgd", "aten::_fused_adagrad",
)  # fmt: skip
def fused_optimizer(call: Call) -> Work:
    """One pass over parameters, gradients and state: about a dozen operations a parameter for
    Adam's moments, a quarter of that for SGD."""
    parameters = sum(t.numel for t in call.args[0])
    return Work(other_flops=parameters * (12 if "adam" in call.op else 4))

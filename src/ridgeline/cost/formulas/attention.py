"""Formulas for fused attention. The full square of scores is counted; the part above the diagonal
of a causal call is also reported separately (`skipped_macs`). Softmax is five operations per score.

Backward has four products, two for each product of forward. A fused backward first computes the
scores again. That fifth product counts as `recomputed_macs`, so that a model costs the same on
every backend.
"""

from functools import partial
from math import prod

from ridgeline.cost.formulas.call import Call, Tensor, Work, formula

_attention = partial(formula, family="attention")

SOFTMAX_FLOPS = 5


def attention(
    pairs: int, head_dim: int, value_dim: int, skipped_pairs: int = 0, *, backward: bool = False
) -> Work:
    """Return the work for `pairs` scores (batch x heads x queries x keys)."""
    products = (2 if backward else 1) * (head_dim + value_dim)
    return Work(
        macs=pairs * products,
        skipped_macs=skipped_pairs * products,
        recomputed_macs=pairs * head_dim if backward else 0,
        other_flops=pairs * SOFTMAX_FLOPS * (2 if backward else 1),
    )


def skipped_above_diagonal(queries: int, keys: int) -> int:
    """Return the number of scores that a causal call can skip: those of keys after their query."""
    return sum(max(keys - row - 1, 0) for row in range(queries))


def _heads_first(q: Tensor, k: Tensor, v: Tensor, causal: bool, backward: bool) -> Work:
    """Return the work for tensors [batch…, heads, sequence, width]; groups of queries may share
    keys."""
    lead, queries, keys = prod(q.shape[:-2]), q.shape[-2], k.shape[-2]
    skipped = lead * skipped_above_diagonal(queries, keys) if causal else 0
    return attention(lead * queries * keys, q.shape[-1], v.shape[-1], skipped, backward=backward)


# The position of the argument `is_causal`, for traces that do not record argument names.
_CAUSAL_AT = {
    "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4,
    "aten::_scaled_dot_product_fused_attention_overrideable": 5,
    "aten::_scaled_dot_product_efficient_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_scaled_dot_product_attention_math_for_mps": 5,
    "aten::scaled_dot_product_attention": 5,
    "aten::_scaled_dot_product_attention_math": 5,
}
_CAUSAL_AT_BACKWARD = {
    "aten::_scaled_dot_product_flash_attention_backward": 11,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": 13,
    "aten::_scaled_dot_product_efficient_attention_backward": 11,
    "aten::_scaled_dot_product_cudnn_attention_backward": 14,
}


@_attention(*_CAUSAL_AT)
def sdpa(call: Call) -> Work:
    causal = bool(call.get("is_causal", _CAUSAL_AT[call.op], False))
    return _heads_first(call.tensor(0), call.tensor(1), call.tensor(2), causal, False)


@_attention(*_CAUSAL_AT_BACKWARD)
def sdpa_backward(call: Call) -> Work:
    causal = bool(call.get("is_causal", _CAUSAL_AT_BACKWARD[call.op], False))
    return _heads_first(call.tensor(1), call.tensor(2), call.tensor(3), causal, True)


def _sequence_first(q: Tensor, k: Tensor, v: Tensor, causal: bool, backward: bool) -> Work:
    """Return the work for tensors [batch, sequence, heads, width]."""
    batch, queries, heads, width = q.shape
    keys = k.shape[1]
    lead = batch * heads
    skipped = lead * skipped_above_diagonal(queries, keys) if causal else 0
    return attention(lead * queries * keys, width, v.shape[-1], skipped, backward=backward)


def _dense(call: Call, first: int, ragged: bool, causal: bool, backward: bool) -> Work:
    """Return the work for a dense batch. The lengths of ragged sequences in a flattened batch are
    data, so their work cannot be counted from shapes."""
    q, k, v = (call.tensor(first + i) for i in range(3))
    if len(q.shape) != 4 or ragged:
        raise TypeError(f"{call.op}: sequences of varying length")
    return _sequence_first(q, k, v, causal, backward)


@_attention("aten::_flash_attention_forward")
def flash(call: Call) -> Work:
    return _dense(call, 0, False, bool(call.get("is_causal", 8)), False)


@_attention("aten::_flash_attention_backward")
def flash_backward(call: Call) -> Work:
    return _dense(call, 1, False, bool(call.get("is_causal", 11)), True)


@_attention("aten::_efficient_attention_forward")
def efficient(call: Call) -> Work:
    """Mask type 1 is causal from the top left, type 2 from the bottom right, and 0 is no mask."""
    ragged = isinstance(call.get("cu_seqlens_q", 4), Tensor)
    return _dense(call, 0, ragged, bool(call.get("custom_mask_type", 9)), False)


@_attention("aten::_efficient_attention_backward")
def efficient_backward(call: Call) -> Work:
    ragged = isinstance(call.get("cu_seqlens_q", 6), Tensor)
    return _dense(call, 1, ragged, bool(call.get("custom_mask_type", 14)), True)


@_attention("flash_attn::_flash_attn_forward")
def flash_attn_package(call: Call) -> Work:
    q, k, v = call.tensor(0), call.tensor(1), call.tensor(2)
    return _sequence_first(q, k, v, bool(call.get("causal", 5, False)), False)


@_attention("flash_attn::_flash_attn_backward")
def flash_attn_package_backward(call: Call) -> Work:
    q, k, v = call.tensor(1), call.tensor(2), call.tensor(3)
    return _sequence_first(q, k, v, bool(call.get("causal", 11, False)), True)


@_attention("higher_order::flex_attention")
def flex(call: Call) -> Work:
    """The full square is counted, because the part that a block mask skips depends on its data."""
    return _heads_first(call.tensor(0), call.tensor(1), call.tensor(2), False, False)


@_attention("higher_order::flex_attention_backward")
def flex_backward(call: Call) -> Work:
    return _heads_first(call.tensor(0), call.tensor(1), call.tensor(2), False, True)


@_attention("aten::_native_multi_head_attention")
def native_multi_head(call: Call) -> Work:
    """The inference fast path of nn.MultiheadAttention: three projections, attention, a fourth."""
    q, k = call.tensor(0), call.tensor(1)
    batch, queries, width = q.shape
    keys = k.shape[1]
    core = attention(batch * queries * keys, width, width)
    heads = int(call.get("num_head", 4, 1))
    projections = batch * width * width * (2 * queries + 2 * keys)
    softmax = batch * heads * queries * keys * SOFTMAX_FLOPS
    return Work(macs=core.macs + projections, other_flops=softmax)


@_attention("aten::_transformer_encoder_layer_fwd")
def encoder_layer(call: Call) -> Work:
    """The inference fast path of nn.TransformerEncoderLayer: attention, then two linears."""
    x = call.tensor(0)
    batch, length, width = x.shape
    heads = int(call.get("num_heads", 2, 1))
    hidden = call.get("ffn_weight_1", 14).shape[0]
    tokens = batch * length
    macs = 4 * tokens * width * width + 2 * tokens * length * width + 2 * tokens * width * hidden
    softmax = heads * tokens * length * SOFTMAX_FLOPS
    norms_and_residuals = tokens * width * (2 * 8 + 2)
    return Work(macs=macs, other_flops=softmax + norms_and_residuals + tokens * hidden)

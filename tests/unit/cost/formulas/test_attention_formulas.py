"""Attention: two products over the full square; causal halves, grouped queries, recomputation."""

from typing import Any

import pytest
import torch

from ridgeline.cost.formulas import Call, Tensor, Work, find, work_of
from ridgeline.cost.formulas.attention import attention, skipped_above_diagonal

BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUE = 2, 4, 6, 6, 8, 8
PAIRS = BATCH * HEADS * QUERIES * KEYS
ABOVE = BATCH * HEADS * (QUERIES * (QUERIES - 1) // 2)
Q = Tensor((BATCH, HEADS, QUERIES, WIDTH))
K = Tensor((BATCH, HEADS, KEYS, WIDTH))
SEQUENCE_FIRST = Tensor((BATCH, QUERIES, HEADS, WIDTH))


def test_attention_has_two_products_and_five_softmax_operations_per_score() -> None:
    assert work_of(Call("aten::scaled_dot_product_attention", (Q, K, K))) == Work(
        macs=PAIRS * (WIDTH + VALUE), other_flops=5 * PAIRS
    )


def test_values_may_have_another_width_than_keys() -> None:
    value = Tensor((BATCH, HEADS, KEYS, 3))
    work = work_of(Call("aten::scaled_dot_product_attention", (Q, K, value)))
    assert work is not None
    assert work.macs == PAIRS * (WIDTH + 3)


def test_causal_attention_counts_the_square_and_names_what_is_skipped() -> None:
    work = work_of(Call("aten::scaled_dot_product_attention", (Q, K, K, None, 0.0, True)))
    assert work is not None
    assert work.macs == PAIRS * 2 * WIDTH
    assert work.skipped_macs == ABOVE * 2 * WIDTH


@pytest.mark.parametrize(
    ("queries", "keys", "skipped"), [(4, 4, 6), (1, 1, 0), (1, 5, 4), (5, 1, 0), (3, 5, 9)]
)
def test_scores_above_the_diagonal_are_counted(queries: int, keys: int, skipped: int) -> None:
    assert skipped_above_diagonal(queries, keys) == skipped
    assert skipped == sum(k > q for q in range(queries) for k in range(keys))


def test_grouped_queries_work_for_every_query_head() -> None:
    """Two heads of keys for four of queries: fewer bytes, not fewer products."""
    shared = Tensor((BATCH, 2, KEYS, WIDTH))
    work = work_of(Call("aten::scaled_dot_product_attention", (Q, shared, shared)))
    assert work is not None
    assert work.macs == PAIRS * 2 * WIDTH


def test_attention_backward_is_four_products_and_recomputes_the_scores() -> None:
    work = attention(PAIRS, WIDTH, VALUE, backward=True)
    assert work.macs == 2 * PAIRS * (WIDTH + VALUE)
    assert work.recomputed_macs == PAIRS * WIDTH


FORWARDS = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
)  # fmt: skip
BACKWARDS = (
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_fused_attention_overrideable_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward",
)
SEQUENCE_FIRST_FORWARDS = (
    "_flash_attention_forward",
    "_efficient_attention_forward",
)
SEQUENCE_FIRST_BACKWARDS = (
    "_flash_attention_backward",
    "_efficient_attention_backward",
)


def calls(op: str, tensors: dict[str, Tensor], causal: bool) -> tuple[Call, Call]:
    """The same call as torch's schema writes it, with names and without."""
    schema = getattr(torch.ops.aten, op).default._schema
    names, values = [], []
    for argument in schema.arguments:
        names.append(argument.name)
        values.append(_value(argument, tensors, causal))
    named = Call(f"aten::{op}", tuple(values), tuple(names))
    return named, Call(f"aten::{op}", tuple(values))


def _value(argument: Any, tensors: dict[str, Tensor], causal: bool) -> Any:
    if argument.name in tensors:
        return tensors[argument.name]
    if argument.name == "is_causal":
        return causal
    if argument.name == "custom_mask_type":
        return int(causal)
    kind = str(argument.type)
    if "Optional" in kind:
        return None
    if kind == "Tensor":
        return Tensor((1,))
    # values that look true, so that a wrong position is noticed
    return {"float": 0.1, "bool": not causal, "int": 1}.get(kind, [True] * 4)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("op", FORWARDS)
def test_every_fused_forward_reads_the_same_with_and_without_names(op: str, causal: bool) -> None:
    named, bare = calls(op, {"query": Q, "key": K, "value": K}, causal)
    expected = attention(PAIRS, WIDTH, VALUE, ABOVE if causal else 0)
    assert work_of(named) == expected
    assert work_of(bare) == expected


@pytest.mark.parametrize("op", BACKWARDS)
def test_every_fused_backward_reads_the_same_with_and_without_names(op: str) -> None:
    for causal in (True, False):
        tensors = {"grad_out": Q, "grad_out_": Q, "query": Q, "key": K, "value": K}
        named, bare = calls(op, tensors, causal)
        expected = attention(PAIRS, WIDTH, VALUE, ABOVE if causal else 0, backward=True)
        assert work_of(named) == expected
        assert work_of(bare) == expected


@pytest.mark.parametrize("op", SEQUENCE_FIRST_FORWARDS)
def test_sequence_first_forwards_read_the_same_with_and_without_names(op: str) -> None:
    x = SEQUENCE_FIRST
    for causal in (True, False):
        named, bare = calls(op, {"query": x, "key": x, "value": x}, causal)
        expected = attention(PAIRS, WIDTH, VALUE, ABOVE if causal else 0)
        assert work_of(named) == expected
        assert work_of(bare) == expected


def test_asking_for_a_debug_mask_does_not_make_attention_causal() -> None:
    x = SEQUENCE_FIRST
    _, bare = calls("_flash_attention_forward", {"query": x, "key": x, "value": x}, False)
    assert work_of(bare) == attention(PAIRS, WIDTH, VALUE)


@pytest.mark.parametrize("op", SEQUENCE_FIRST_BACKWARDS)
def test_sequence_first_backwards_read_the_same_with_and_without_names(op: str) -> None:
    x = SEQUENCE_FIRST
    tensors = {"grad_out": x, "grad_out_": x, "query": x, "key": x, "value": x}
    for causal in (True, False):
        named, bare = calls(op, tensors, causal)
        expected = attention(PAIRS, WIDTH, VALUE, ABOVE if causal else 0, backward=True)
        assert work_of(named) == expected
        assert work_of(bare) == expected


def test_sequences_of_unknown_lengths_are_refused() -> None:
    ragged = Tensor((100, HEADS, WIDTH))
    offsets = Tensor((5,), "int32")
    args = (ragged, ragged, ragged, offsets, offsets, 30, 30, 0.0, False, False)
    function = find("aten::_flash_attention_forward")
    assert function is not None
    with pytest.raises(TypeError, match="varying length"):
        function(Call("aten::_flash_attention_forward", args))


def test_the_fast_path_of_multihead_attention_has_four_projections() -> None:
    x, width = Tensor((2, 6, 16)), 16
    weights = (Tensor((48, 16)), Tensor((48,)), Tensor((16, 16)), Tensor((16,)))
    work = work_of(Call("aten::_native_multi_head_attention", (x, x, x, width, 4, *weights)))
    assert work == Work(
        macs=4 * 2 * 6 * width * width + 2 * 2 * 6 * 6 * width, other_flops=5 * 2 * 4 * 6 * 6
    )


def test_the_fast_path_of_an_encoder_layer_adds_its_two_linears() -> None:
    x, width, hidden = Tensor((2, 6, 16)), 16, 40
    names = [
        a.name for a in torch.ops.aten._transformer_encoder_layer_fwd.default._schema.arguments
    ]
    args = [Tensor((hidden, width)) if n == "ffn_weight_1" else None for n in names]
    args[:3] = [x, width, 4]  # type: ignore[list-item]
    work = work_of(Call("aten::_transformer_encoder_layer_fwd", tuple(args)))
    assert work is not None
    attended = 4 * 12 * width * width + 2 * 12 * 6 * width
    assert work.macs == attended + 2 * 12 * width * hidden


def test_flex_attention_is_the_full_square() -> None:
    assert work_of(Call("higher_order::flex_attention", (Q, K, K))) == attention(
        PAIRS, WIDTH, VALUE
    )

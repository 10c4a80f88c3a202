"""Elementwise operators: so many operations an element, and none of torch's left out."""

import pytest
import torch

from ridgeline.cost.formulas import Call, Tensor, Work, find, work_of

T = Tensor


def pointwise_operators() -> list[str]:
    """Every aten operator that torch itself tags as pointwise."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace != "aten":
            continue
        operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        if torch.Tag.pointwise in operator.tags:
            found.add(f"aten::{base}")
    return sorted(found)


NOT_LISTED = {"aten::rrelu", "aten::rrelu_"}
"""A live model shows rrelu_with_noise in its place; a trace shows both."""


def test_every_operator_that_torch_calls_pointwise_has_a_formula_free_of_torch() -> None:
    operators = pointwise_operators()
    assert len(operators) > 200
    missing = [op for op in operators if find(op) is None and op not in NOT_LISTED]
    assert missing == []


def test_the_only_exception_is_listed() -> None:
    assert find("aten::rrelu") is not None


@pytest.mark.parametrize(
    ("op", "each"),
    [
        ("add", 1), ("mul_", 1), ("relu", 1), ("exp", 1), ("clamp", 2), ("sigmoid", 3), ("lerp", 3),
        ("addcmul", 3), ("silu", 4), ("gelu", 5), ("gelu_backward", 8), ("where", 0),
        ("logical_and", 0), ("masked_fill_", 0),
    ],
)  # fmt: skip
def test_operations_an_element(op: str, each: int) -> None:
    assert work_of(Call(f"aten::{op}", (T((4, 5)),))) == Work(other_flops=20 * each)


def test_a_broadcast_result_counts_in_full() -> None:
    assert work_of(Call("aten::mul", (T((4, 1)), T((1, 5))))) == Work(other_flops=20)


def test_the_work_of_a_maximum_is_the_elements_it_reads() -> None:
    outputs = (T((4,)), T((4,), "int64"))
    assert work_of(Call("aten::max", (T((4, 5)), 1), (), outputs)) == Work(other_flops=20)


def test_elementwise_work_is_never_matmul_like() -> None:
    for op in pointwise_operators():
        if op in NOT_LISTED:
            continue
        work = work_of(Call(op, (T((4, 5)), T((4, 5)), T((4, 5)))))
        assert work is not None
        assert (work.macs, work.transform_flops) == (0, 0), op

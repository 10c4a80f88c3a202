"""The nouns of a formula: tensors without data, calls with and without names and outputs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.formulas import Call, Tensor, Work, work_of


def test_a_tensor_knows_its_elements_and_bytes() -> None:
    assert Tensor((2, 3, 4)).numel == 24
    assert Tensor((2, 3, 4), "bfloat16").nbytes == 48
    assert Tensor((), "int64").nbytes == 8
    assert Tensor((0, 5)).nbytes == 0
    assert Tensor((1,), "complex64").is_complex
    assert not Tensor((1,)).is_complex


def test_an_argument_is_found_by_name_where_there_are_names() -> None:
    call = Call("x::y", (Tensor((1,)), 5, True), ("self", "k", "flag"))
    assert call.get("flag", 0) is True
    assert call.get("absent", 1, "default") == "default"


def test_an_argument_is_found_by_position_where_there_are_none() -> None:
    call = Call("x::y", (Tensor((1,)), 5, True))
    assert call.get("flag", 2) is True
    assert call.get("absent", 7, "default") == "default"


def test_tensors_are_found_inside_lists() -> None:
    a, b, c = Tensor((1,)), Tensor((2,)), Tensor((3,))
    assert Call("x::y", ([a, [b]], 1, None, (c,))).tensors == (a, b, c)


def test_a_position_that_holds_no_tensor_is_an_error_with_the_operator_in_it() -> None:
    with pytest.raises(TypeError, match="x::y: argument 1"):
        Call("x::y", (Tensor((1,)), 5)).tensor(1)


def test_elements_are_those_of_the_largest_output() -> None:
    call = Call("x::y", (Tensor((100,)),), (), (Tensor((2,)), Tensor((3,))))
    assert call.elements == 3


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_without_outputs_elements_are_the_broadcast_of_the_inputs(
    shape: list[int], data: st.DataObject
) -> None:
    ones = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    cut = data.draw(st.integers(0, len(shape)))
    thin = [1 if one else n for n, one in zip(shape, ones, strict=True)][cut:]
    call = Call("x::y", (Tensor(tuple(shape)), Tensor(tuple(thin))))
    assert call.elements == Tensor(tuple(shape)).numel


def test_flops_are_two_per_mac_plus_transforms() -> None:
    assert Work(macs=10, transform_flops=3, other_flops=99).flops == 23


A, B, BIAS = Tensor((3, 4)), Tensor((4, 5)), Tensor((5,))
IMAGE, KERNEL = Tensor((2, 3, 8, 8)), Tensor((6, 3, 3, 3))
QKV = (Tensor((2, 4, 6, 8)), Tensor((2, 4, 10, 8)), Tensor((2, 4, 10, 8)))


@pytest.mark.parametrize(
    ("op", "args", "macs", "other"),
    [
        ("aten::mm", (A, B), 60, 0),
        ("aten::addmm", (BIAS, A, B, 1, 1), 60, 15),
        ("aten::bmm", (Tensor((7, 3, 4)), Tensor((7, 4, 5))), 420, 0),
        (
            "aten::convolution",
            (IMAGE, KERNEL, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
            2 * 4 * 4 * 6 * 27,
            0,
        ),
        (
            "aten::scaled_dot_product_attention",
            (*QKV, None, 0.0, False),
            2 * 4 * 6 * 10 * 16,
            2 * 4 * 6 * 10 * 5,
        ),
        ("aten::native_layer_norm", (A, [4], Tensor((4,)), Tensor((4,)), 1e-5), 0, 7 * 12),
        ("aten::add", (A, Tensor((4,)), 1), 0, 12),
    ],
)
def test_a_trace_without_names_and_outputs_is_enough(
    op: str, args: tuple[object, ...], macs: int, other: int
) -> None:
    work = work_of(Call(op, args))
    assert work is not None
    assert (work.macs, work.other_flops) == (macs, other)

"""Matrix products: rows × columns × what is summed over."""

import pytest

from ridgeline.cost.formulas import Call, Tensor, Work, work_of

T = Tensor


@pytest.mark.parametrize(
    ("op", "args", "outputs", "work"),
    [
        ("mm", (T((3, 4)), T((4, 5))), (), Work(macs=60)),
        ("mm", (T((3, 4), "complex64"), T((4, 5), "complex64")), (), Work(macs=240)),
        ("_int_mm", (T((3, 4), "int8"), T((4, 5), "int8")), (), Work(macs=60)),
        (
            "_scaled_mm",
            (T((16, 32), "float8_e4m3fn"), T((32, 16), "float8_e4m3fn"), T(()), T(())),
            (),
            Work(macs=16 * 32 * 16),
        ),
        ("bmm", (T((2, 3, 4)), T((2, 4, 5))), (), Work(macs=120)),
        ("addmm", (T((5,)), T((3, 4)), T((4, 5))), (), Work(macs=60, other_flops=15)),
        ("baddbmm", (T((1,)), T((2, 3, 4)), T((2, 4, 5))), (), Work(macs=120, other_flops=30)),
        ("addbmm", (T((3, 5)), T((2, 3, 4)), T((2, 4, 5))), (), Work(macs=120)),
        ("mv", (T((3, 4)), T((4,))), (), Work(macs=12)),
        ("dot", (T((7,)), T((7,))), (), Work(macs=7)),
        ("addmv", (T((3,)), T((3, 4)), T((4,))), (), Work(macs=12, other_flops=3)),
        ("linear", (T((2, 3, 4)), T((5, 4))), (), Work(macs=2 * 3 * 4 * 5)),
        (
            "linear_backward",
            (T((3, 4)), T((3, 5)), T((5, 4)), [True, True, True]),
            (),
            Work(macs=120),
        ),
        (
            "linear_backward",
            (T((3, 4)), T((3, 5)), T((5, 4)), [False, True, True]),
            (),
            Work(macs=60),
        ),
        # 6 rows shared among 3 experts: each row meets one 4 × 5 matrix
        ("_grouped_mm", (T((6, 4)), T((3, 4, 5)), T((3,), "int32")), (), Work(macs=120)),
        ("_weight_int8pack_mm", (T((3, 4)), T((5, 4), "int8"), T((5,))), (), Work(macs=60)),
        ("_weight_int4pack_mm", (T((3, 4)), T((1, 1), "int32")), (T((3, 5)),), Work(macs=60)),
    ],
)
def test_products(
    op: str, args: tuple[object, ...], outputs: tuple[Tensor, ...], work: Work
) -> None:
    assert work_of(Call(f"aten::{op}", args, (), outputs)) == work


def test_a_bilinear_layer_multiplies_three_broadcast_operands() -> None:
    """x1 [2, 3] · W [5, 3, 4] · x2 [2, 4]: 2·5·3·4 products of three."""
    args = (T((2, 3)), T((5, 3, 4)), T((2, 4)), [1, 3], [0], [1, 2], [2, 3])
    work = work_of(Call("aten::_trilinear", args))
    assert work == Work(macs=120, other_flops=120)


def test_distances_are_a_difference_and_a_mac_for_each_coordinate() -> None:
    x, y = T((3, 8)), T((5, 8))
    assert work_of(Call("aten::_cdist_forward", (x, y, 2.0, None))) == Work(
        macs=120, other_flops=120 + 15
    )
    batched = T((7, 3, 8)), T((7, 5, 8))
    assert work_of(Call("aten::_cdist_forward", (*batched, 2.0, None))) == Work(
        macs=840, other_flops=840 + 105
    )
    assert work_of(Call("aten::_pdist_forward", (T((4, 8)), 2.0))) == Work(
        macs=6 * 8, other_flops=6 * 9
    )

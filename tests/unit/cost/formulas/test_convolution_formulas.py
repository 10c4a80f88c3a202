"""Convolutions: output sites × kernel × channels a group; transposed ones from the input's side."""

import pytest

from ridgeline.cost.formulas import Call, Tensor, Work, work_of
from ridgeline.cost.formulas.products import output_sites

T = Tensor


def convolution(
    x: Tensor,
    weight: Tensor,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    transposed: bool = False,
    bias: bool = False,
) -> Work | None:
    dims = len(x.shape) - 2
    args = (
        x, weight, T((weight.shape[0],)) if bias else None, [stride] * dims, [padding] * dims,
        [dilation] * dims, transposed, [0] * dims, 1,
    )  # fmt: skip
    return work_of(Call("aten::convolution", args))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation", "sites"),
    [
        (8, 3, 1, 0, 1, 6), (8, 3, 1, 1, 1, 8), (8, 3, 2, 1, 1, 4), (8, 3, 1, 0, 2, 4),
        (7, 7, 2, 3, 1, 4), (5, 1, 3, 0, 1, 2), (224, 7, 2, 3, 1, 112),
    ],
)  # fmt: skip
def test_sites_follow_stride_padding_and_dilation(
    size: int, kernel: int, stride: int, padding: int, dilation: int, sites: int
) -> None:
    x, weight = T((1, 1, size)), T((1, 1, kernel))
    assert output_sites(x, weight, [stride], [padding], [dilation]) == (sites,)


def test_a_single_value_stands_for_every_dimension() -> None:
    x, weight = T((1, 1, 8, 9, 10)), T((1, 1, 3, 3, 3))
    assert output_sites(x, weight, [1], 0, (1,)) == (6, 7, 8)


@pytest.mark.parametrize(
    ("x", "weight", "how", "macs"),
    [
        (T((2, 3, 8)), T((4, 3, 3)), {}, 2 * 6 * 4 * 9),
        (T((2, 3, 8, 8)), T((4, 3, 3, 3)), {"padding": 1}, 2 * 64 * 4 * 27),
        (T((2, 3, 8, 8)), T((4, 3, 3, 3)), {"stride": 2, "padding": 1}, 2 * 16 * 4 * 27),
        (T((1, 2, 4, 4, 4)), T((3, 2, 2, 2, 2)), {}, 27 * 3 * 16),
        # depthwise: the weight's second dimension is channels a group
        (T((1, 8, 5, 5)), T((8, 1, 3, 3)), {}, 9 * 8 * 9),
        (T((1, 8, 5, 5)), T((16, 4, 3, 3)), {}, 9 * 16 * 36),
        # transposed: weight is [in, out, kernel]; each input pixel meets 5 × 2 × 2
        (T((2, 3, 4, 4)), T((3, 5, 2, 2)), {"transposed": True, "stride": 2}, 2 * 3 * 16 * 20),
        (T((1, 2, 6), "complex64"), T((3, 2, 3), "complex64"), {}, 4 * 4 * 3 * 6),
    ],
)
def test_forward(x: Tensor, weight: Tensor, how: dict[str, int], macs: int) -> None:
    work = convolution(x, weight, **how)  # type: ignore[arg-type]
    assert work is not None
    assert work.macs == macs


@pytest.mark.parametrize(
    ("mask", "times", "bias"),
    [
        ([True, True, True], 2, True),
        ([False, True, False], 1, False),
        ([True, False, False], 1, False),
    ],
)
def test_backward_pays_once_for_each_gradient_asked_for(
    mask: list[bool], times: int, bias: bool
) -> None:
    grad, x, weight = T((2, 4, 6, 6)), T((2, 3, 8, 8)), T((4, 3, 3, 3))
    args = (grad, x, weight, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)
    work = work_of(Call("aten::convolution_backward", args))
    assert work == Work(macs=times * 2 * 36 * 4 * 27, other_flops=grad.numel if bias else 0)


def test_a_backends_own_operator_costs_what_convolution_does() -> None:
    x, weight, out = T((2, 3, 8, 8)), T((4, 3, 3, 3)), T((2, 4, 6, 6))
    plain = convolution(x, weight)
    assert plain is not None
    for op in ("aten::cudnn_convolution", "aten::mkldnn_convolution"):
        assert work_of(Call(op, (x, weight), (), (out,))) == Work(macs=plain.macs)
    transposed = work_of(
        Call("aten::cudnn_convolution_transpose", (T((2, 3, 4, 4)), T((3, 5, 2, 2))))
    )
    assert transposed == Work(macs=2 * 3 * 16 * 20)


def test_a_bias_adds_one_to_each_output() -> None:
    x, weight, out = T((2, 3, 8, 8)), T((4, 3, 3, 3)), T((2, 4, 6, 6))
    args = (x, weight, T((4,)), [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    work = work_of(Call("aten::convolution", args, (), (out,)))
    assert work is not None
    assert work.other_flops == out.numel


def test_a_bias_adds_as_much_where_outputs_were_not_recorded() -> None:
    work = convolution(T((2, 3, 8, 8)), T((4, 3, 3, 3)), bias=True)
    assert work is not None
    assert work.other_flops == 2 * 4 * 6 * 6

"""Integer products: the same MACs as in floating point."""

import pytest

from ridgeline.cost.formulas import Call, Tensor, Work, find, work_of

T = Tensor


@pytest.mark.parametrize("op", ["linear", "linear_relu", "linear_dynamic", "linear_dynamic_fp16"])
def test_a_linear_with_its_weight_unpacked(op: str) -> None:
    call = Call(f"quantized::{op}", (T((3, 4), "quint8"), T((5, 4), "qint8"), 1.0, 0))
    assert work_of(call) == Work(macs=60)


def test_a_packed_weight_that_cannot_be_read_leaves_its_columns_in_the_result() -> None:
    packed = object()
    call = Call("quantized::linear", (T((3, 4), "quint8"), packed), (), (T((3, 5), "quint8"),))
    assert work_of(call) == Work(macs=60)


def test_a_convolution() -> None:
    out = T((2, 4, 6, 6), "quint8")
    call = Call("quantized::conv2d", (T((2, 3, 8, 8), "quint8"), T((4, 3, 3, 3))), (), (out,))
    assert work_of(call) == Work(macs=2 * 36 * 4 * 27)


def test_a_convolution_with_an_unknown_kernel_is_refused() -> None:
    function = find("quantized::conv2d")
    assert function is not None
    with pytest.raises(TypeError, match="packed weight"):
        function(Call("quantized::conv2d", (T((2, 3, 8, 8)), object())))


def test_onednn_linear_takes_its_columns_from_the_result() -> None:
    call = Call("onednn::qlinear_pointwise", (T((3, 4), "uint8"),), (), (T((3, 5)),))
    assert work_of(call) == Work(macs=60)

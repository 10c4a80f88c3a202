"""Reductions, norms, softmax, losses, pooling and sorting: a convention, applied evenly."""

import pytest

from ridgeline.cost.formulas import Call, Tensor, Work, work_of

T = Tensor


@pytest.mark.parametrize(
    ("op", "each"),
    [
        ("sum", 1), ("mean", 1), ("cumsum", 1), ("argmax", 1), ("var_mean", 3), ("_softmax", 5),
        ("_log_softmax", 5), ("_softmax_backward_data", 4), ("native_layer_norm", 7),
        ("native_layer_norm_backward", 11), ("native_batch_norm", 7), ("_fused_rms_norm", 4),
        ("any", 0), ("nonzero", 0),
    ],
)  # fmt: skip
def test_operations_for_each_element_read(op: str, each: int) -> None:
    call = Call(f"aten::{op}", (T((6, 8)), T((8,))), (), (T((6,)),))
    assert work_of(call) == Work(other_flops=48 * each)


def test_operations_for_each_element_written() -> None:
    call = Call("aten::upsample_bilinear2d", (T((1, 1, 2, 2)),), (), (T((1, 1, 4, 4)),))
    assert work_of(call) == Work(other_flops=7 * 16)


@pytest.mark.parametrize(
    ("op", "kernel", "window"),
    [
        ("max_pool2d_with_indices", [3, 2], 6),
        ("avg_pool2d", [3], 9),
        ("avg_pool1d", [3], 3),
        ("max_pool3d_with_indices", [2], 8),
    ],
)
def test_pooling_looks_at_a_window_for_each_result(op: str, kernel: list[int], window: int) -> None:
    out = T((1, 2, 4, 4))
    call = Call(f"aten::{op}", (T((1, 2, 8, 8)), kernel), (), (out,))
    assert work_of(call) == Work(other_flops=32 * window)


def test_sorting_compares_n_log_n_times() -> None:
    assert work_of(Call("aten::sort", (T((3, 8)),))) == Work(other_flops=24 * 3)
    assert work_of(Call("aten::topk", (T((3, 1)), 1))) == Work()
    assert work_of(Call("aten::sort", (T(()),))) == Work()


def test_sorting_along_another_dimension_compares_along_that_one() -> None:
    assert work_of(Call("aten::sort", (T((8, 2)), 0))) == Work(other_flops=16 * 3)


def test_a_loss_over_picked_scores_does_not_read_the_others() -> None:
    work = work_of(
        Call("aten::nll_loss_forward", (T((32, 50_000)), T((32,), "int64"), None, 1, -1))
    )
    assert work is not None
    assert work.other_flops == 64
    assert work.read_bytes is not None
    assert work.read_bytes < 32 * 50_000

"""misaligned-shape: products whose rows do not begin on 16-byte boundaries."""

from typing import Any

import pytest

from ridgeline.diagnosis.rules.misaligned_shape import look, padded_size
from ridgeline.records.run import Flags
from tests.unit.diagnosis.rules.made_up_precision import FILE, SOURCE, case, gpu, product

SLOW = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_nn_align1>"
FAST = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNN"
HEAD = (8192, 768, 50257)
"""0.63 TFLOP: 0.71 ms at 0.9 of the peak."""
RUN: dict[str, Any] = {"flags": Flags(autocast=("cuda bfloat16",))}
VOCABULARY = SOURCE + "\nVOCABULARY = 50257  # of GPT-2\n"


def test_a_vocabulary_of_50257() -> None:
    made = product(2.8, SLOW, "bfloat16", HEAD)
    [found] = look(case(made, source=VOCABULARY, **RUN))
    assert "a size of 50257, no multiple of 8" in found.claim
    assert "50304" in found.claim
    assert found.share_pct == pytest.approx(20.9, abs=0.2)
    assert (found.file, found.line) == (FILE, 9)
    assert found.change == "VOCABULARY = 50304  # 50257, padded"
    assert found.confidence == "high"


def test_products_of_one_size_are_one_finding() -> None:
    sizes = [(8192, 4095, 4095), (4095, 8192, 4095), (8192, 4095, 4095)]
    made = [product(1.5, SLOW, "bfloat16", size) for size in sizes]
    [found] = look(case(*made, **RUN))
    assert "4095" in found.claim
    assert "4096" in found.claim
    assert found.line == 6  # no such number in the source: where the model is called


def test_an_aligned_product_of_the_step_says_what_can_be_reached() -> None:
    aligned = product(0.30, FAST, "bfloat16", (8192, 4096, 4096))  # 916 TFLOP/s
    slower = product(1.0, SLOW, "bfloat16", (8192, 4096, 4095))
    [found] = look(case(aligned, slower, **RUN))
    assert any("916 TFLOP/s" in e.text for e in found.evidence)


@pytest.mark.parametrize(
    ("kernel", "dtype", "sizes", "ms"),
    [
        (FAST, "bfloat16", (8192, 768, 50304), 2.8),  # aligned, slow for another reason
        (FAST, "bfloat16", (8191, 768, 50304), 2.8),  # the batch is in no row's length
        (SLOW, "bfloat16", HEAD, 0.8),  # as fast as padded
        ("ampere_sgemm_128x64_nn", "float32", HEAD, 20.0),  # no tensor cores: tf32-off's
        (SLOW, "bfloat16", (16, 768, 50257), 0.02),  # waits for memory
    ],
)
def test_silent_where_padding_gains_nothing(
    kernel: str, dtype: str, sizes: tuple[int, int, int], ms: float
) -> None:
    assert not list(look(case(product(ms, kernel, dtype, sizes), **RUN)))


def test_a_kernel_that_says_it_is_aligned_is_believed() -> None:
    eight = SLOW.replace("align1", "align8")
    assert not list(look(case(product(2.8, eight, "bfloat16", HEAD), **RUN)))


def test_tf32_wants_multiples_of_four() -> None:
    tf32 = "cutlass_80_tensorop_s1688gemm_tf32_128x128_nn_align1"
    [found] = look(case(product(6.0, tf32, "float32", (8192, 768, 50257)), **RUN))
    assert "no multiple of 4" in found.claim
    fine = product(6.0, FAST, "float32", (8192, 768, 50260))
    assert not list(look(case(fine, **RUN)))


def test_rows_of_a_transposed_weight_are_its_columns() -> None:
    # x [8192, 768] · W[50257, 768].T: the weight's rows are 768 long, the result's 50257
    strides = ([768, 1], [1, 768])
    [found] = look(case(product(2.8, SLOW, "bfloat16", HEAD, strides=strides), **RUN))
    assert "50257" in found.claim


def test_channels_of_a_convolution_but_not_those_of_an_image() -> None:
    kernel = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
    given: dict[str, Any] = {"op": "aten::cudnn_convolution", "strides": (), "flops": 4e11}
    image = {"dims": ([64, 3, 224, 224], [64, 3, 7, 7]), **given}
    odd = {"dims": ([64, 61, 56, 56], [64, 61, 3, 3]), **given}
    assert not list(look(case(product(3.0, kernel, "bfloat16", **image), **RUN)))
    [found] = look(case(product(3.0, kernel, "bfloat16", **odd), **RUN))
    assert "61" in found.claim
    assert "64" in found.claim


def test_a_gpu_without_tensor_cores_has_no_such_wish() -> None:
    old = gpu("Tesla V100-SXM2-32GB", "sm_61")
    assert not list(look(case(product(2.8, SLOW, "float16", HEAD), device=old)))


@pytest.mark.parametrize(
    ("size", "need", "padded"), [(50257, 8, 50304), (4095, 8, 4096), (61, 8, 64), (30522, 8, 30528)]
)
def test_sizes_are_padded_to_whole_tiles(size: int, need: int, padded: int) -> None:
    assert padded_size(size, need) == padded

"""Kernels and operators get the category a reader would give them."""

from pathlib import Path

import pytest

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.kernels import categories, category_of
from ridgeline.trace.links import Links
from tests.unit.trace.traces_made import Made

ALL = Window(start_ns=0, end_ns=10**12, basis="test")


@pytest.mark.parametrize(
    ("kernel", "op", "category"),
    [
        ("ampere_sgemm_128x64_tn", "aten::addmm", "matmul"),
        ("ampere_sgemm_128x64_tn", "", "matmul"),
        ("volta_sgemm_64x64_nt", "aten::cudnn_convolution_backward_weight", "convolution"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16>", "", "matmul"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc", "", "convolution"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN", "aten::mm", "matmul"),
        ("Cijk_Alik_Bljk_BBS_BH_MT256x192x64_MI16x16x1", "", "matmul"),
        ("void pytorch_flash::flash_fwd_kernel<traits>", "", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "", "attention"),
        ("attn_fwd", "", "attention"),
        ("kernel_unified_attention_3d", "", "attention"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "", "norm"),
        ("void vectorized_layer_norm_kernel<c10::BFloat16, float>", "", "norm"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdI", "", "norm"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>", "", "elementwise"),
        ("void at::native::elementwise_kernel<direct_copy_kernel_cuda>", "aten::copy_", "copy"),
        ("void CatArrayBatchedCopy<OpaqueType<2u>>", "aten::cat", "copy"),
        ("Memcpy HtoD (Pageable -> Device)", "aten::copy_", "copy"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float>>", "", "reduction"),
        ("void softmax_warp_forward<float, float, float, 10, true>", "", "reduction"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<2>>", "", "optimizer"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "", "communication"),
        ("void indexSelectLargeIndex<c10::BFloat16, long>", "", "embedding"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "", "elementwise"),
        ("void split_embedding_backward_codegen_adagrad_kernel", "", "embedding"),
        ("void cudnn::ops::scalePackedTensor_kernel", "aten::convolution_backward", "convolution"),
        ("mystery", "", "other"),
        ("mystery", "aten::native_layer_norm", "norm"),
    ],
)
def test_kernel_names_tell_the_category(kernel: str, op: str, category: str) -> None:
    assert category_of(kernel, op) == category


@pytest.mark.parametrize(
    ("kernel", "category"),
    [
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "norm"),
        ("triton_per_fused_native_layer_norm_3", "norm"),
        ("triton_poi_fused__unsafe_view_mul_silu_2", "elementwise"),
        ("triton_poi_fused_convolution_relu_4", "elementwise"),
        ("triton_poi_fused__to_copy_1", "copy"),
        ("triton_red_fused_sum_7", "reduction"),
        ("triton_per_fused__softmax_1", "reduction"),
        ("triton_tem_fused_mm_5", "matmul"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_for_fused_2", "optimizer"),
    ],
)
def test_generated_kernels_are_read_by_their_fused_operators(kernel: str, category: str) -> None:
    assert category_of(kernel) == category


@pytest.mark.parametrize(
    ("op", "category"),
    [
        ("aten::mm", "matmul"),
        ("aten::gelu", "elementwise"),
        ("aten::sum", "reduction"),
        ("aten::copy_", "copy"),
        ("aten::scaled_dot_product_attention", "attention"),
        ("ConvolutionBackward0", "convolution"),
        ("AddmmBackward0", "matmul"),
        ("c10d::allreduce_", "communication"),
        ("my::thing", "other"),
    ],
)
def test_operators_alone_have_a_category(op: str, category: str) -> None:
    assert category_of("", op) == category


def test_categories_add_up_to_the_device_time_of_the_window(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::mm", 0, 10).launch("ampere_sgemm_128x64_tn", 1, 20, 30, 1)
    made.launch("vectorized_elementwise_kernel", 12, 50, 5, 2)
    made.kernel("Memcpy DtoD (Device -> Device)", 60, 7, 3, cat="gpu_memcpy")
    made.kernel("ncclKernel", 5000, 7, 4)
    trace = made.trace(tmp_path)
    window = Window(start_ns=0, end_ns=1_000_000, basis="test")
    rows = categories(trace, Links(trace), window)
    assert [(r.category, r.device_ns, r.count) for r in rows] == [
        ("matmul", 30_000, 1),
        ("copy", 7_000, 1),
        ("elementwise", 5_000, 1),
    ]
    assert sum(r.share for r in rows) == pytest.approx(1)


def test_no_device_work_has_no_categories(tmp_path: Path) -> None:
    trace = Made().op("aten::mm", 0, 10).trace(tmp_path)
    assert categories(trace, Links(trace), ALL) == ()

"""Names of kernels say whether tensor cores worked; where they do not, nothing is claimed."""

import pytest

from ridgeline.trace.analyses.kernels import uses_tensor_cores


@pytest.mark.parametrize(
    "kernel",
    [
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn",
        "turing_h1688gemm_128x128_ldg8_stages_32x1_tn",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc",
        "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN",
        "Cijk_Alik_Bljk_BBS_BH_Bias_MT256x192x64_MI16x16x1_SN",
        "void pytorch_flash::flash_fwd_kernel<traits>",
        "cutlass3x_sm90_tensorop_gmma_bf16",
    ],
)
def test_tensor_core_kernels_are_known(kernel: str) -> None:
    assert uses_tensor_cores(kernel) is True


@pytest.mark.parametrize(
    "kernel",
    [
        "volta_sgemm_128x64_nn",
        "ampere_sgemm_32x128_tn",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7>",
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "void gemmSN_TN_kernel<float, 128, 16, 2, 4>",
    ],
)
def test_plain_multiply_add_kernels_are_known(kernel: str) -> None:
    assert uses_tensor_cores(kernel) is False


@pytest.mark.parametrize("kernel", ["attn_fwd", "my_kernel", "", "triton_tem_fused_mm_5"])
def test_a_name_that_does_not_tell_gives_none(kernel: str) -> None:
    assert uses_tensor_cores(kernel) is None

"""Whether a kernel runs on tensor cores (AMD: matrix cores), as far as its name tells."""

import re

_YES = re.compile(
    r"hmma|imma_|dmma|[hsi]884|[shi]1688|s16816|h16816|i8816|i16832|s161616|s16832|tensorop|"
    r"wmma|wgmma|gmma|tcgen05|utcmma|nvjet|tf32|bf16bf16|f16f16|e4m3|e5m2|"
    r"xmma_(?:new_)?(?:gemm|fprop|dgrad|wgrad)_(?:f16|bf16|tf32|i8|e4m3|e5m2)|sm[89]\d_xmma|"
    r"sm1\d\d_xmma|_MI\d+x\d+|mfma|flash_(?:fwd|bwd)|flash::|fmha_cutlassF_(?:f16|bf16)|"
    r"fmha_cutlassB_(?:f16|bf16)|cudnn_generated_fort_native_sdpa|marlin|machete",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"simt|ffma", re.IGNORECASE)
"""Plain multiply-adds, whatever else the name says: sm80_xmma_gemm_f32f32_f32f32_…_ffma_….

fmha_cutlassF_f32 is in no list: it may run as three TF32 products, and its name does not say.
"""
_NO = re.compile(
    r"(?:volta|maxwell|pascal|turing|ampere)_(?:s|d|c|z)gemm|"
    r"(?:volta|maxwell|turing|ampere)_(?:scudnn|dgemm)|gemv|gemmSN|dot_kernel|"
    r"(?:implicit|explicit|precomputed)_convolve_(?:s|d)gemm|convolve_common_engine_float|"
    r"(?:dgrad|wgrad)_\w*engine<float|wgrad_alg0_engine<|dgrad_engine<|"
    r"winograd_nonfused|_sgemm|(?:elementwise|reduce|softmax|scan|CatArray\w*)_?kernel|"
    r"^Memcpy|^Memset|^nccl|_MAC_|VALU|\bsgemm_",
    re.IGNORECASE,
)


def uses_tensor_cores(kernel: str) -> bool | None:
    """True or False where the name says so; None where it does not.

    The first match in the name of a multiply unit decides: `s1688gemm` and `tensorop` are tensor
    cores also in a name that says sgemm; `ampere_sgemm_128x64_tn` is plain FMA.
    """
    if _PLAIN.search(kernel):
        return False
    if _YES.search(kernel):
        return True
    return False if _NO.search(kernel) else None

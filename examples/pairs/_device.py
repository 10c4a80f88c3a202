"""Where the pairs run, and what that device can do."""

import platform

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def bf16_is_native() -> bool:
    """Whether bfloat16 products run in hardware.

    `torch.ops.mkldnn._is_mkldnn_bf16_supported()` is not enough on x86: it is True wherever there
    is AVX-512, and without avx512_bf16 a product takes about three times as long as in float32.
    """
    if DEVICE == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if platform.machine() in ("aarch64", "arm64"):
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in asked)


def fp8_is_native() -> bool:
    return DEVICE == "cuda" and torch.cuda.get_device_capability() >= (8, 9)

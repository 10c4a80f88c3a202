"""Torch's process-wide settings. A variant that changes one changes it for the other as well, so
variants that do are put into processes of their own."""

import torch

Settings = dict[str, str]


def current() -> Settings:
    """Each setting that changes speed or results and can be read back."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    found = {
        "threads": torch.get_num_threads(),
        "interop threads": torch.get_num_interop_threads(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "float32 matmul precision": _matmul_precision(),
        "cudnn TF32": _read(lambda: cudnn.allow_tf32),
        "cudnn.benchmark": cudnn.benchmark,
        "cudnn.deterministic": cudnn.deterministic,
        "cudnn.enabled": cudnn.enabled,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast on cuda": torch.is_autocast_enabled("cuda"),
        "autocast on cpu": torch.is_autocast_enabled("cpu"),
        "flash attention": cuda.flash_sdp_enabled(),
        "memory-efficient attention": cuda.mem_efficient_sdp_enabled(),
        "math attention": cuda.math_sdp_enabled(),
        "cudnn attention": cuda.cudnn_sdp_enabled(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "attention fast path": torch.backends.mha.get_fastpath_enabled(),
    }
    return {name: str(value) for name, value in found.items()}


def changed(before: Settings, after: Settings) -> tuple[str, ...]:
    """ "threads 2 → 1" for each setting that is not as it was."""
    return tuple(
        f"{name} {before[name]} → {after[name]}"
        for name in before
        if after.get(name, before[name]) != before[name]
    )


def _matmul_precision() -> str:
    return _read(torch.get_float32_matmul_precision)


def _read(get: object) -> str:
    """torch raises where its old and its new TF32 switches have both been used."""
    try:
        return str(get())  # type: ignore[operator]
    except RuntimeError:
        return "set by torch.backends' fp32_precision"

"""float32 products in full or in TF32, for a while; the program's own setting comes back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Matrix products of float32 run in TF32 on CUDA, or in full float32 everywhere."""
    cublas: Any = torch.backends.cuda.matmul
    if not _has_precision(cublas):
        was = cublas.allow_tf32
        cublas.allow_tf32 = tf32
        try:
            yield
        finally:
            cublas.allow_tf32 = was
        return
    # From torch 2.9 on, reading the old flag raises in a program that set the new one, so only
    # the new one is touched. oneDNN has it too: there "medium" turns float32 into bfloat16.
    switches = [(cublas, "tf32" if tf32 else "ieee")]
    mkldnn: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if mkldnn is not None:
        switches.append((mkldnn, "ieee"))
    kept = [(switch, _setting(switch)) for switch, _ in switches]
    try:
        for switch, wanted in switches:
            switch.fp32_precision = wanted
        yield
    finally:
        for switch, setting in kept:
            switch.fp32_precision = setting


def _has_precision(switch: Any) -> bool:
    try:
        return isinstance(switch.fp32_precision, str)
    except (AttributeError, RuntimeError):
        return False


def _setting(switch: Any) -> str:
    """What to write back: "none" where the value is merely inherited from torch.backends, so
    that a later change there still reaches it."""
    value = str(switch.fp32_precision)
    return "none" if value == str(torch.backends.fp32_precision) else value  # type: ignore[attr-defined, unused-ignore]

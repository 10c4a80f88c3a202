"""On meta tensors scaled_dot_product_attention falls apart into matmuls that no device would run:
more operators, an S x S score matrix in memory, and nothing left of "causal". Here it stays one
fused operator, as it is on a CPU or GPU, whoever calls it: the rule goes to the dispatcher, since
nn.MultiheadAttention calls it out of reach of a function mode."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_WRITTEN_OUT = torch.ops.aten._scaled_dot_product_attention_math


class FusedCalls:
    """How many attention calls were kept fused."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if _kernels_would_decline(query, key, value, attn_mask, enable_gqa):
            out = _WRITTEN_OUT(
                query, key, value, attn_mask, dropout_p, is_causal,
                scale=scale, enable_gqa=enable_gqa,
            )  # fmt: skip
            return out[0]  # type: ignore[no-any-return]
        self.count += 1
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = attn_mask.to(query.dtype)
        out = _FUSED(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        return out[0]  # type: ignore[no-any-return]


def _kernels_would_decline(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    enable_gqa: bool,
) -> bool:
    """Other ranks, a value width of its own, a mask that needs a gradient."""
    return (
        query.dim() != 4
        or not query.shape[-1] == key.shape[-1] == value.shape[-1]
        or (mask is not None and mask.requires_grad)
        or (key.shape[1] != query.shape[1] and not enable_gqa)
    )


@contextmanager
def attention_kept_fused() -> Iterator[FusedCalls]:
    calls = FusedCalls()
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", calls, "AutogradMeta")
    try:
        yield calls
    finally:
        library._destroy()

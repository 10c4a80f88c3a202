"""Cross-entropy of many rows over many classes, some rows at a time: no tensor of the size of the
logits is made in the forward, and one, their gradient, in the backward. This file is written into
a program's source as it is, so it uses torch alone."""

from typing import Any

import torch
from torch.nn.functional import cross_entropy as _cross_entropy


class ChunkedCrossEntropy(torch.autograd.Function):
    """Gradients of the gradient are refused: it is made by hand."""

    @staticmethod
    def forward(
        ctx: Any, logits: Any, target: Any, weight: Any, ignore_index: int, smoothing: float,
        rows: int,
    ) -> Any:  # fmt: skip
        ctx.save_for_backward(logits, target, weight)
        ctx.settings = (ignore_index, smoothing, rows)
        total = logits.new_zeros((), dtype=torch.float32)
        with torch.autocast(logits.device.type, enabled=False):
            for some, wanted in zip(logits.split(rows), target.split(rows), strict=True):
                total += _cross_entropy(
                    some.float(), wanted, weight, ignore_index=ignore_index, reduction="sum",
                    label_smoothing=smoothing,
                )  # fmt: skip
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        logits, target, weight = ctx.saved_tensors
        ignore_index, smoothing, rows = ctx.settings
        made = torch.empty_like(logits, memory_format=torch.contiguous_format)
        classes = logits.size(1)
        scales = torch.ones(classes, device=logits.device) if weight is None else weight.float()
        parts = zip(logits.split(rows), target.split(rows), made.split(rows), strict=True)
        for some, wanted, out in parts:
            keep = wanted != ignore_index
            at = torch.where(keep, wanted, 0).unsqueeze(1)
            own = (1 - smoothing) * scales[at]
            found = torch.softmax(some.float(), dim=1)
            if smoothing:
                found *= own + smoothing / classes * scales.sum()
                found -= smoothing / classes * scales
            else:
                found *= own
            found.scatter_add_(1, at, -own)
            found *= keep.unsqueeze(1)
            out.copy_(found.mul_(gradient))
        return made, None, None, None, None, None


def chunked_cross_entropy(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0, rows: int = 1024,
) -> Any:  # fmt: skip
    """torch.nn.functional.cross_entropy of [N, V] logits and N class numbers."""
    given = (input, target, weight, ignore_index, label_smoothing, rows)
    total = ChunkedCrossEntropy.apply(*given)  # type: ignore[no-untyped-call]
    if reduction == "mean":
        keep = target != ignore_index
        own = keep if weight is None else weight[torch.where(keep, target, 0)] * keep
        total = total / own.sum()
    small = input.dtype in (torch.bfloat16, torch.float16)
    plain = small and not torch.is_autocast_enabled(input.device.type)
    return total.to(input.dtype) if plain else total

"""Functions of torch alone that fixes run in place of torch's own: cross-entropy of some rows at a
time, a model's call in parts of the batch, and Linear layers in float8.

What a fix writes into a user's source is copied from here word for word (`model_edits.code_of`), so
that the copy computes what the trial did. A definition therefore uses torch and this file alone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy as _cross_entropy
from torch.utils.checkpoint import checkpoint

TILE = 16
"""The product in float8 wants rows, columns and depth to be multiples of this number."""


class ChunkedCrossEntropy(torch.autograd.Function):
    """No tensor of the size of the logits is made in the forward, and one, their gradient, in the
    backward. Gradients of the gradient are refused."""

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
    """Return torch.nn.functional.cross_entropy of [N, V] logits and N class numbers."""
    given = (input, target, weight, ignore_index, label_smoothing, rows)
    total = ChunkedCrossEntropy.apply(*given)  # type: ignore[no-untyped-call]
    if reduction == "mean":
        keep = target != ignore_index
        own = keep if weight is None else weight[torch.where(keep, target, 0)] * keep
        total = total / own.sum()
    small = input.dtype in (torch.bfloat16, torch.float16)
    plain = small and not torch.is_autocast_enabled(input.device.type)
    return total.to(input.dtype) if plain else total


def in_parts(model: Callable[..., Any], *args: Any, parts: int, **kwargs: Any) -> Any:
    """Return `model(*args, **kwargs)`, whose outputs have a row for each row of its first tensor.

    What a part keeps for the backward is computed again when the backward comes to it, so that one
    part's activations are in memory at a time, and the gradients of all parts add up. The loss sees
    the whole batch."""
    every = (*args, *kwargs.values())
    sizes = (one.size(0) for one in every if isinstance(one, torch.Tensor) and one.dim())
    rows = next(sizes, 0)
    if rows < parts:
        return model(*args, **kwargs)
    size = -(-rows // parts)

    def cut(one: Any, first: int) -> Any:
        if isinstance(one, torch.Tensor) and one.dim() and one.size(0) == rows:
            return one[first : first + size]
        return one

    found = []
    for first in range(0, rows, size):
        given = [cut(one, first) for one in args]
        named = {key: cut(one, first) for key, one in kwargs.items()}
        if torch.is_grad_enabled():
            found.append(checkpoint(model, *given, use_reentrant=False, **named))
        else:
            found.append(model(*given, **named))
    return joined(found)


def joined(found: list[Any]) -> Any:
    """Return the rows of all parts, one part after the other. Anything but tensors with rows is
    refused: a mean of means need not be the mean."""
    first = found[0]
    if isinstance(first, torch.Tensor) and first.dim():
        return torch.cat(found)
    if type(first) in (tuple, list):
        return type(first)(joined(list(each)) for each in zip(*found, strict=True))
    if type(first) is dict:
        return {key: joined([one[key] for one in found]) for key in first}
    if first is None:
        return None
    raise TypeError(f"the model returns {type(first).__name__}, which is no row for each sample")


def small(tensor: Any, kind: Any) -> tuple[Any, Any]:
    """Return the tensor in that type with a scale made from its largest element, and the scale."""
    largest = tensor.abs().amax().float().clamp_min(1e-12)
    scale = largest / torch.finfo(kind).max
    return (tensor.float() / scale).to(kind), scale


class Float8Linear(torch.autograd.Function):
    """The product of rows of two dimensions and a weight. Gradients have the type with the wider
    range (e5m2), and what is kept for the backward is in 8 bits. Gradients of the gradient are
    refused."""

    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any, bias: Any) -> Any:
        left, of_left = small(rows, torch.float8_e4m3fn)
        right, of_right = small(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(left, of_left, right, of_right)
        ctx.kinds = (rows.dtype, weight.dtype, None if bias is None else bias.dtype)
        added = None if bias is None else bias.to(torch.bfloat16)
        return torch._scaled_mm(
            left, right.t(), of_left, of_right, bias=added, out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )  # fmt: skip

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        left, of_left, right, of_right = ctx.saved_tensors
        rows, weight, bias = ctx.kinds
        wide, of_wide = small(gradient, torch.float8_e5m2)
        found: list[Any] = [None, None, None]
        if ctx.needs_input_grad[0]:
            turned = right.t().contiguous().t()  # the second factor has its columns in a piece
            product = torch._scaled_mm(wide, turned, of_wide, of_right, out_dtype=torch.bfloat16)
            found[0] = product.to(rows)
        if ctx.needs_input_grad[1]:
            turned = left.t().contiguous().t()
            across = wide.t().contiguous()
            product = torch._scaled_mm(across, turned, of_wide, of_left, out_dtype=torch.bfloat16)
            found[1] = product.to(weight)
        if bias is not None and ctx.needs_input_grad[2]:
            found[2] = gradient.sum(0, dtype=torch.float32).to(bias)
        return tuple(found)


def float8_linear(x: Any, weight: Any, bias: Any) -> Any:
    """Return `linear(x, weight, bias)` in bfloat16; None if a size is no multiple of the tile."""
    sizes = (x.numel() // max(x.size(-1), 1), *weight.shape)
    if any(size % TILE or not size for size in sizes):
        return None
    rows = Float8Linear.apply(x.reshape(-1, x.size(-1)), weight, bias)  # type: ignore[no-untyped-call]
    return rows.reshape(*x.shape[:-1], weight.size(0))

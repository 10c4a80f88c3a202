"""A Linear layer's products in float8, forward and backward, each tensor with a scale of its own
made from its largest element. It uses torch alone, so that it can be taken over into
a program."""

from typing import Any

import torch

TILE = 16
"""The product wants rows, columns and depth to be multiples of it."""


def small(tensor: Any, kind: Any) -> tuple[Any, Any]:
    """In that type, and what an element of it is worth."""
    largest = tensor.abs().amax().float().clamp_min(1e-12)
    scale = largest / torch.finfo(kind).max
    return (tensor.float() / scale).to(kind), scale


class Float8Linear(torch.autograd.Function):
    """Of two dimensions. Gradients have the type with the wider range (e5m2); what is kept for the
    backward is in 8 bits. Gradients of the gradient are refused: it is made by hand."""

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
    """`linear(x, weight, bias)` in bfloat16; None where its sizes are no multiples of the tile."""
    sizes = (x.numel() // max(x.size(-1), 1), *weight.shape)
    if any(size % TILE or not size for size in sizes):
        return None
    rows = Float8Linear.apply(x.reshape(-1, x.size(-1)), weight, bias)  # type: ignore[no-untyped-call]
    return rows.reshape(*x.shape[:-1], weight.size(0))

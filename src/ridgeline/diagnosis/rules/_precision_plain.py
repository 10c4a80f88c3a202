"""float32 products on plain units that a switch would put on tensor cores, as TF32."""

from collections.abc import Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._precision import Product, is_amd, peak_of
from ridgeline.trace.analyses.tensor_cores import uses_tensor_cores

FASTER = 1.2
"""Least ratio of the two peaks: on a GeForce card they are equal."""
ALL_PLAIN = 0.9
"""Of a trace's convolution time: on plain units, from which on a switch is the reason, not the
shape of a few of them."""


def plain_products(case: Case, every: Sequence[Product]) -> tuple[Product, ...]:
    full, tf32 = peak_of(case, "float32"), peak_of(case, "tf32")
    if full is None or tf32 is None or tf32.value < FASTER * full.value or is_amd(case):
        return ()
    kinds = _kinds(case, every)
    told = case.capture is not None
    return tuple(
        p for p in every if p.arithmetic == "float32" and p.kind in kinds and (told or _plainly(p))
    )


def _kinds(case: Case, every: Sequence[Product]) -> tuple[str, ...]:
    """matmul and convolution each have their switch."""
    flags = case.capture.flags if case.capture is not None else None
    kinds = []
    if flags is None or flags.matmul_tf32 is not True:
        kinds.append("matmul")
    unknown = flags is None or flags.cudnn_tf32 is None
    if (flags is not None and flags.cudnn_tf32 is False) or (unknown and _convolutions(every)):
        kinds.append("convolution")
    return tuple(kinds)


def _plainly(product: Product) -> bool:
    """Without flags, by the names of kernels alone."""
    told = [uses_tensor_cores(kernel.name) for kernel in product.site.kernels]
    return False in told and True not in told


def _convolutions(every: Sequence[Product]) -> bool:
    ours = [p for p in every if p.kind == "convolution"]
    plain = sum(p.ns for p in ours if p.arithmetic == "float32" and _plainly(p))
    return plain >= ALL_PLAIN * sum(p.ns for p in ours)

"""One operator against its ceilings: which one binds, and what share of it was reached."""

import re
from typing import Literal

from msgspec import Struct

from ridgeline.cost.formulas.call import ITEM_BYTES
from ridgeline.records.machine import MAX_SHARE_OF_CEILING, Ceiling, Device
from ridgeline.records.trace import RooflineRow
from ridgeline.trace.analyses.op_work import OpWork

_TF32 = re.compile(r"tf32|tensorop|s1688|xmma_\w*tf32", re.IGNORECASE)
_WINOGRAD = re.compile(r"winograd|fft", re.IGNORECASE)
_WORDS = ((r"BFloat16|bf16", "bfloat16"), (r"Half|f16\b|fp16", "float16"),
          (r"OpaqueType<2u?>", "float16"), (r"OpaqueType<4u?>", "float32"),
          (r"OpaqueType<8u?>", "float64"), (r"<float\b|\bfloat\b", "float32"),
          (r"\bdouble\b", "float64"))  # fmt: skip


class Hint(Struct, frozen=True):
    """What the names of an operator's kernels add to its inputs."""

    tf32: bool = False
    fewer_flops: bool = False
    """Winograd or FFT: fewer multiplications than the formula counts."""
    list_dtype: str = ""
    """The type of lists of tensors, which traces do not record."""
    width_only: bool = False
    """That is no more than one of the right width: the kernel copies opaque items."""

    def for_work(self, work: OpWork) -> "Hint":
        """Without what this work does not need, so that alike rows become one."""
        return Hint(
            tf32=self.tf32 and work.dtype == "float32",
            fewer_flops=self.fewer_flops,
            list_dtype=self.list_dtype if work.dtype_of_list else "",
            width_only=self.width_only and work.dtype_of_list,
        )


def hint_of(kernel: str) -> Hint:
    found = next((dtype for pattern, dtype in _WORDS if re.search(pattern, kernel)), "")
    return Hint(
        tf32=_TF32.search(kernel) is not None,
        fewer_flops=_WINOGRAD.search(kernel) is not None,
        list_dtype=found,
        width_only="OpaqueType" in kernel,
    )


def row_of(
    op: str, shape: str, work: OpWork, hint: Hint, count: int, ns: int, total: int,
    device: Device | None,
) -> RooflineRow:  # fmt: skip
    dtype = "tf32" if work.dtype == "float32" and hint.tf32 and work.flops else work.dtype
    if work.dtype_of_list and hint.width_only:
        dtype = f"{8 * ITEM_BYTES[work.dtype]}-bit"
    seconds = ns / 1e9
    flops_s, bytes_s = (v * count / seconds if ns else 0.0 for v in (work.flops, work.bytes))
    intensity = work.flops / work.bytes if work.bytes else 0.0
    bound, ceiling, source = _bound(device, dtype, intensity)
    attained = None
    if ceiling is not None and ns:
        attained = (flops_s if bound == "compute" else bytes_s) / ceiling.value
    over = attained is not None and attained > MAX_SHARE_OF_CEILING
    return RooflineRow(
        op=op,
        shape=shape,
        dtype=dtype,
        count=count,
        device_ns=ns,
        share=ns / max(total, 1),
        flops=float(work.flops),
        bytes=float(work.bytes),
        flops_s=flops_s,
        bytes_s=bytes_s,
        intensity=intensity,
        bound=bound,
        attained=None if over else attained,
        over_ceiling=over,
        ceiling=None if ceiling is None else ceiling.value,
        source=source,
        note=_note(over, bound, hint),
    )


def _bound(
    device: Device | None, dtype: str, intensity: float
) -> tuple[Literal["compute", "memory", ""], Ceiling | None, str]:
    if device is None:
        return "", None, "the device is not known"
    arithmetic = device.ceiling("matmul", _arithmetic(dtype))
    memory = device.ceiling("copy")
    if memory is None:
        doubtful = device.doubtful_ceiling("copy")
        why = "was measured on a busy machine" if doubtful else "is not known"
        return "", None, f"the bandwidth of this device {why}"
    if arithmetic is not None and intensity > arithmetic.value / memory.value:
        return "compute", arithmetic, arithmetic.source
    # without a peak for the type, anything with many operations a byte cannot be placed
    if arithmetic is None and intensity > _PLACEABLE:
        doubtful = device.doubtful_ceiling("matmul", _arithmetic(dtype))
        why = "was measured on a busy machine" if doubtful else "is not known"
        return "", None, f"the {dtype} peak of this device {why}"
    return "memory", memory, memory.source


_PLACEABLE = 8.0
"""FLOPs a byte: below the ridge of every device listed (T4 float32: 25), above elementwise work."""


def _arithmetic(dtype: str) -> str:
    if dtype.startswith("float8"):
        return "float8"
    return {"complex64": "float32", "complex128": "float64", "uint8": "int8"}.get(dtype, dtype)


def _note(over: bool, bound: str, hint: Hint) -> str:
    if hint.fewer_flops and bound == "compute":
        what = "the kernel (Winograd, FFT) multiplies less than the formula counts"
        return f"over the ceiling: {what}" if over else what
    if not over:
        return ""
    if bound == "memory":
        return "over the ceiling: inputs came from cache, or one tensor was given twice"
    return (
        "over the ceiling: the ceiling was measured on a busy machine, the formula counts too many "
        "operations, or a faster unit did them"
    )

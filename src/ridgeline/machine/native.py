"""Which dtypes a device computes with its own instructions, emulates, or cannot do at all.

Pure functions of instruction flags and compute capability. torch's own predicates are not asked:
`torch.ops.mkldnn._is_mkldnn_bf16_supported()` is True on a CPU with avx512 but no avx512_bf16,
where a bfloat16 product runs at a third of the float32 rate.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ridgeline.records.machine import Ceiling


class Support(Struct, frozen=True):
    possible: bool
    native: bool = True
    why: str = ""
    """Why not possible, or why not native."""


_NATIVE = Support(True)

# Any one of these flags (Linux's spelling, x86 and ARM) means hardware arithmetic.
_FLAGS: dict[str, tuple[frozenset[str], str]] = {
    "bfloat16": (frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"}), "bf16"),
    "float16": (frozenset({"avx512_fp16", "amx_fp16", "asimdhp", "fphp"}), "fp16"),
    "int8": (frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}), "int8 dot"),
    "float8": (frozenset({"amx_fp8"}), "fp8"),
}


def on_cpu(dtype: str, flags: frozenset[str]) -> Support:
    if dtype == "tf32":
        return Support(False, False, "a format of GPUs; a CPU computes float32 in full")
    if dtype not in _FLAGS:
        return _NATIVE
    needed, instructions = _FLAGS[dtype]
    if not flags:
        return Support(True, True, "not known to be native: instruction flags cannot be read here")
    if flags & needed:
        return _NATIVE
    return Support(True, False, f"emulated: this CPU has no {instructions} instructions")


def on_nvidia(dtype: str, capability: tuple[int, int]) -> Support:
    sm = f"this device is sm_{capability[0]}{capability[1]}"
    if dtype == "bfloat16" and capability < (8, 0):
        return Support(True, False, f"emulated: bf16 needs sm_80 and {sm}")
    if dtype == "float16" and capability < (5, 3):
        return Support(True, False, f"emulated: fp16 needs sm_53 and {sm}")
    needs = {"tf32": (8, 0), "float8": (8, 9), "int8": (7, 5)}.get(dtype, (0, 0))
    if capability < needs:
        return Support(False, False, f"needs sm_{needs[0]}{needs[1]} and {sm}")
    return _NATIVE


def on_amd(dtype: str, architecture: str) -> Support:
    if dtype == "tf32":
        return Support(False, False, "torch's flags do not switch it on ROCm")
    if dtype == "float8" and not architecture.startswith(("gfx94", "gfx95", "gfx12")):
        return Support(False, False, f"needs gfx942 or later and this is {architecture}")
    if dtype == "bfloat16" and architecture.startswith(("gfx8", "gfx900", "gfx906", "gfx10")):
        return Support(True, False, f"emulated: {architecture} has no bf16 matrix instructions")
    return _NATIVE


def with_ratios(ceilings: Sequence[Ceiling], supports: dict[str, Support]) -> tuple[Ceiling, ...]:
    """The same ceilings, each emulated or unproven one with its measured ratio to float32."""
    float32 = next(
        (c.value for c in ceilings if c.dtype == "float32" and c.source == "measured"), None
    )
    return tuple(_noted(c, supports.get(c.dtype, _NATIVE), float32) for c in ceilings)


def _noted(ceiling: Ceiling, support: Support, float32: float | None) -> Ceiling:
    if ceiling.quantity != "matmul" or ceiling.source != "measured" or not support.why:
        return ceiling
    note = support.why
    if float32:
        ratio = ceiling.value / float32
        speed = "slower" if ratio < 0.95 else "faster" if ratio > 1.05 else "no faster"
        note += f"; {speed} than float32 here ({ratio:.2g} ×)"
    return msgspec.structs.replace(ceiling, native=support.native, note=note)

"""The datasheets of GPUs: peak rates and bandwidth, one row per product, all DENSE (no sparsity).

The figures are for matrix products: if tensor or matrix cores compute a dtype, their rate is listed
(float64 on an H200: 67 TFLOP/s; its plain FP64 units give 34). float16, bfloat16 and float8 are
with float32 accumulation, which torch uses; on GeForce cards that is half of the advertised figure
with float16 accumulation. The module also knows which dtypes a device computes natively
(`Support`). It does not look at the machine: names and flags are passed in.
"""

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ridgeline.records.machine import Ceiling

# ruff: noqa: E501 (a table is read by its columns: one product a line)


DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8")


class Datasheet(Struct, frozen=True):
    """Peaks of one product: TFLOP/s (TOP/s for int8) and GB/s; None if it cannot compute a dtype."""

    product: str
    pattern: str
    """A regular expression for the whole device name without vendor and brand. A laptop part, a MIG
    slice or a smaller sibling has a longer name and must not get these numbers."""
    cores: int
    """The multiprocessors that torch reports for the whole product. A device with fewer is a slice
    of it."""
    float64: float | None
    float32: float | None
    tf32: float | None
    bfloat16: float | None
    float16: float | None
    float8: float | None
    int8: float | None
    gb_s: float
    note: str = ""

    def ceilings(self) -> tuple[Ceiling, ...]:
        """Return the peaks of this product as ceilings."""
        note = f"{self.product}, dense" + (f"; {self.note}" if self.note else "")
        peaks = [(dtype, getattr(self, dtype)) for dtype in DTYPES]
        products = tuple(
            Ceiling(
                quantity="matmul",
                value=peak * 1e12,
                unit="FLOP/s",
                source="datasheet",
                dtype=dtype,
                note=note,
            )
            for dtype, peak in peaks
            if peak is not None
        )
        memory = Ceiling(
            quantity="copy", value=self.gb_s * 1e9, unit="B/s", source="datasheet", note=note
        )
        return (*products, memory)


_TENSOR64 = "float64 on tensor cores, twice the plain rate"
_GEFORCE = "float16 and float8 with float32 accumulation, half the float16-accumulate figure"
_GCD = "one GCD of two, which is what torch sees as a device"
_MATRIX = "float64 and float32 on matrix cores"

# GeForce, L-series, A10 and T4 sheets print no float64: it is 1/64 of float32 (T4: 1/32) by their
# architecture papers. V100 has no int8 tensor cores, T4 and V100 no bfloat16.
# fmt: off
TABLE: tuple[Datasheet, ...] = (
    #         product          whole name                        SMs   fp64  fp32   tf32    bf16
    # fp16    fp8     int8    GB/s
    Datasheet("V100 SXM2",     r"V100-SXM2-(16|32)GB(-LS)?",     80,   7.8,  15.7,  None,   None,   125.0,  None,   None,   900.0),
    Datasheet("V100 PCIe",     r"V100-PCIE-(16|32)GB",           80,   7.0,  14.0,  None,   None,   112.0,  None,   None,   900.0),
    Datasheet("V100S PCIe",    r"V100S-PCIE-32GB",               80,   8.2,  16.4,  None,   None,   130.0,  None,   None,   1134.0),
    Datasheet("T4",            r"T4",                            40,   0.25, 8.1,   None,   None,   65.0,   None,   130.0,  320.0),
    Datasheet("A10",           r"A10",                           72,   0.49, 31.2,  62.5,   125.0,  125.0,  None,   250.0,  600.0),
    Datasheet("A10G",          r"A10G",                          80,   0.55, 35.0,  35.0,   70.0,   70.0,   None,   140.0,  600.0),
    Datasheet("A100 40GB",     r"A100-(SXM4|PCIE)-40GB",         108,  19.5, 19.5,  156.0,  312.0,  312.0,  None,   624.0,  1555.0, _TENSOR64),
    Datasheet("A100 80GB PCIe", r"A100 80GB PCIe|A100-PCIE-80GB", 108, 19.5, 19.5,  156.0,  312.0,  312.0,  None,   624.0,  1935.0, _TENSOR64),
    Datasheet("A100 80GB SXM", r"A100-SXM4-80GB",                108,  19.5, 19.5,  156.0,  312.0,  312.0,  None,   624.0,  2039.0, _TENSOR64),
    Datasheet("L4",            r"L4",                            58,   0.47, 30.3,  60.0,   121.0,  121.0,  242.5,  242.5,  300.0),
    Datasheet("L40S",          r"L40S",                          142,  1.43, 91.6,  183.0,  362.0,  362.0,  733.0,  733.0,  864.0),
    Datasheet("RTX 3090",      r"RTX 3090",                      82,   0.56, 35.6,  35.6,   71.2,   71.2,   None,   284.7,  936.0,  _GEFORCE),
    Datasheet("RTX 4090",      r"RTX 4090",                      128,  1.29, 82.6,  82.6,   165.2,  165.2,  330.3,  660.6,  1008.0, _GEFORCE),
    Datasheet("RTX 5090",      r"RTX 5090",                      170,  1.64, 104.8, 104.8,  209.5,  209.5,  419.0,  838.0,  1792.0, _GEFORCE),
    Datasheet("H100 PCIe",     r"H100 PCIe",                     114,  51.2, 51.2,  378.0,  756.0,  756.0,  1513.0, 1513.0, 2039.0, _TENSOR64),
    Datasheet("H100 SXM",      r"H100 80GB HBM3",                132,  66.9, 66.9,  494.7,  989.4,  989.4,  1979.0, 1979.0, 3352.0, _TENSOR64),
    Datasheet("H100 NVL",      r"H100 NVL",                      132,  60.0, 60.0,  417.5,  835.5,  835.5,  1671.0, 1671.0, 3938.0, _TENSOR64),
    Datasheet("H200 SXM",      r"H200",                          132,  67.0, 67.0,  494.7,  989.4,  989.4,  1979.0, 1979.0, 4800.0, _TENSOR64),
    Datasheet("H200 NVL",      r"H200 NVL",                      132,  60.0, 60.0,  417.5,  835.5,  835.5,  1671.0, 1671.0, 4800.0, _TENSOR64),
    Datasheet("B200",          r"B200",                          148,  37.0, 75.0,  1125.0, 2250.0, 2250.0, 4500.0, 4500.0, 8000.0),
    Datasheet("MI210",         r"MI210",                         104,  45.3, 45.3,  None,   181.0,  181.0,  None,   181.0,  1638.0, _MATRIX),
    Datasheet("MI250X",        r"MI250X( ?/ ?MI250)?",           110,  47.9, 47.9,  None,   191.5,  191.5,  None,   191.5,  1638.0, f"{_GCD}; {_MATRIX}"),
    Datasheet("MI300X",        r"MI300X( OAM| VF)?",             304, 163.4, 163.4, 653.7,  1307.4, 1307.4, 2614.9, 2614.9, 5300.0, _MATRIX),
    Datasheet("MI325X",        r"MI325X( OAM| VF)?",             304, 163.4, 163.4, 653.7,  1307.4, 1307.4, 2614.9, 2614.9, 6000.0, _MATRIX),
)
# fmt: on

_BRAND = re.compile(r"^(NVIDIA\s+|AMD\s+)?(Tesla\s+|GeForce\s+|Instinct\s+)?", re.IGNORECASE)


def match(name: str, cores: int = 0) -> Datasheet | None:
    """Return the datasheet for a device name as torch or NVML reports it; None if there is none.

    `cores` (multiprocessors) distinguishes a whole device from a MIG or CPX slice with the same
    name, and an MI250 from an MI250X, which a driver may both call "MI250X / MI250".
    """
    bare = _BRAND.sub("", name.strip())
    for row in TABLE:
        if re.fullmatch(row.pattern, bare, re.IGNORECASE):
            return None if 0 < cores < row.cores else row
    return None


class Support(Struct, frozen=True):
    """Says whether a device can compute a dtype."""

    possible: bool
    native: bool = True
    why: str = ""
    """Why it is not possible, or not native."""


_NATIVE = Support(True)

# A CPU with any of these flags (Linux's spelling, x86 and ARM) computes the dtype in hardware.
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
    """Return the ceilings. Those of dtypes that are emulated, or not known to be native, get a note
    with their ratio to float32."""
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

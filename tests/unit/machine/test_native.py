"""Which dtypes are native, emulated or impossible."""

import pytest

from ridgeline.machine import datasheet, processor
from ridgeline.machine.datasheet import Support
from ridgeline.records.machine import Ceiling

ICE_LAKE = frozenset({"avx2", "avx512f", "avx512_vnni"})
SAPPHIRE = ICE_LAKE | {"avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"}
GRAVITON = frozenset({"asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve"})


@pytest.mark.parametrize(
    ("flags", "dtype", "is_native"),
    [
        (ICE_LAKE, "float32", True),
        (ICE_LAKE, "bfloat16", False),
        (ICE_LAKE, "float16", False),
        (ICE_LAKE, "int8", True),
        (ICE_LAKE, "float8", False),
        (SAPPHIRE, "bfloat16", True),
        (SAPPHIRE, "float16", True),
        (GRAVITON, "bfloat16", True),
        (GRAVITON, "float16", True),
        (frozenset({"avx2", "f16c"}), "float16", False),
        (frozenset({"avx2"}), "int8", False),
    ],
)
def test_cpu_flags_decide(flags: frozenset[str], dtype: str, is_native: bool) -> None:
    support = datasheet.on_cpu(dtype, flags)
    assert support.possible
    assert support.native is is_native
    assert is_native or support.why.startswith("emulated: this CPU has no")


def test_unreadable_flags_are_not_called_emulation() -> None:
    support = datasheet.on_cpu("bfloat16", frozenset())
    assert support.native
    assert "cannot be read" in support.why


def test_tf32_does_not_exist_on_a_cpu() -> None:
    assert not datasheet.on_cpu("tf32", SAPPHIRE).possible


@pytest.mark.parametrize(
    ("capability", "impossible", "emulated"),
    [
        ((7, 0), {"tf32", "float8", "int8"}, {"bfloat16"}),
        ((7, 5), {"tf32", "float8"}, {"bfloat16"}),
        ((8, 0), {"float8"}, set()),
        ((8, 9), set(), set()),
        ((9, 0), set(), set()),
        ((12, 0), set(), set()),
    ],
)
def test_compute_capability_decides(
    capability: tuple[int, int], impossible: set[str], emulated: set[str]
) -> None:
    dtypes = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8")
    supports = {dtype: datasheet.on_nvidia(dtype, capability) for dtype in dtypes}
    assert {d for d, s in supports.items() if not s.possible} == impossible
    assert {d for d, s in supports.items() if s.possible and not s.native} == emulated
    assert all(s.why for s in supports.values() if not (s.possible and s.native))


def test_amd_generations_decide() -> None:
    assert datasheet.on_amd("float8", "gfx942").possible
    assert not datasheet.on_amd("float8", "gfx90a").possible
    assert datasheet.on_amd("bfloat16", "gfx90a").native


def _measured(dtype: str, value: float) -> Ceiling:
    return Ceiling(quantity="matmul", value=value, unit="FLOP/s", source="measured", dtype=dtype)


def test_an_emulated_dtype_carries_its_measured_ratio() -> None:
    supports = {"bfloat16": datasheet.on_cpu("bfloat16", ICE_LAKE)}
    noted = datasheet.with_ratios(
        [_measured("float32", 200e9), _measured("bfloat16", 50e9)], supports
    )
    assert not noted[1].native
    assert noted[1].note.endswith("; slower than float32 here (0.25 ×)")
    assert noted[0].note == ""


def test_without_float32_there_is_no_ratio() -> None:
    supports = {"bfloat16": Support(True, False, "emulated: x")}
    assert datasheet.with_ratios([_measured("bfloat16", 1.0)], supports)[0].note == "emulated: x"


def test_the_widest_extension_wins() -> None:
    assert processor.widest_extension(SAPPHIRE) == "amx"
    assert processor.widest_extension(ICE_LAKE) == "avx512"
    assert processor.widest_extension(frozenset({"sse2", "avx", "avx2"})) == "avx2"
    assert processor.widest_extension(frozenset({"asimd"})) == "neon"
    assert processor.widest_extension(frozenset()) == ""


def test_flags_are_read_from_x86_and_arm_cpuinfo() -> None:
    assert processor.parse_flags("processor\t: 0\nflags\t\t: fpu avx2\n") == {"fpu", "avx2"}
    assert processor.parse_flags("Features\t: asimd bf16\n") == {"asimd", "bf16"}
    assert processor.parse_flags("") == frozenset()


@pytest.mark.parametrize(
    ("text", "size"), [("49152K", 48 << 20), ("49152 KB", 48 << 20), ("1M", 1 << 20), ("", 0)]
)
def test_cache_sizes_are_read_in_any_spelling(text: str, size: int) -> None:
    assert processor.parse_size(text) == size

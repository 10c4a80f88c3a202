"""tf32-off: float32 products on plain units of a GPU that has TF32."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rules.precision import tf32_off as look
from ridgeline.records.machine import Device
from ridgeline.records.run import Flags
from ridgeline.records.sites import Sites
from tests.unit.diagnosis.rules.made_up_precision import FILE, SOURCE, case, gpu, product

SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_cublas"
OFF = Flags(matmul_tf32=False, cudnn_tf32=True, matmul_precision="highest")
ON = Flags(matmul_tf32=True, cudnn_tf32=True, matmul_precision="high")


def test_plain_products_with_the_switch_off_are_found() -> None:
    # 2 × 4096³ FLOP: 2.6 ms at 53 TFLOP/s, 0.28 ms at the TF32 peak
    [found] = look(case(product(2.6, SGEMM), flags=OFF))
    assert found.share_pct == pytest.approx(23.2, abs=0.2)
    assert found.gain_bound == pytest.approx(1.343, abs=0.01)
    assert found.confidence == "high"
    assert "26 % of the step" in found.claim
    assert (found.file, found.line) == (FILE, 6)  # where the model is called
    assert 'set_float32_matmul_precision("high")' in found.change


def test_the_line_that_switches_it_off_is_named_and_rewritten() -> None:
    text = SOURCE + "\ntorch.backends.cuda.matmul.allow_tf32 = False  # exact\n"
    [found] = look(case(product(2.6, SGEMM), flags=OFF, source=text))
    assert found.line == 9
    assert found.change == "torch.backends.cuda.matmul.allow_tf32 = True"
    text = SOURCE + '\ntorch.set_float32_matmul_precision("highest")\n'
    [found] = look(case(product(2.6, SGEMM), flags=OFF, source=text))
    assert found.line == 9
    assert found.change == 'torch.set_float32_matmul_precision("high")'


def test_another_switch_that_is_off_is_not_blamed() -> None:
    text = SOURCE + "\ntorch.backends.cudnn.allow_tf32 = False\n"
    [found] = look(case(product(2.6, SGEMM), flags=OFF, source=text))
    assert found.line == 6


def test_a_trace_alone_is_read_by_kernel_names() -> None:
    made = case(product(2.6, "ampere_sgemm_128x64_nn"))
    [found] = look(replace(made, sites=replace(made.sites, stacks=False)))
    assert found.confidence == "medium"
    assert found.share_pct == pytest.approx(23.2, abs=0.2)


def test_without_shapes_the_ratio_of_the_peaks_bounds_it() -> None:
    bare = product(2.6, "ampere_sgemm_128x64_nn", dims=(), types=(), strides=(), flops=0.0,
                   bytes=0.0, place=None)  # fmt: skip
    [found] = look(case(bare, sites=Sites(ops=(bare,), steps=3)))
    assert 20 < found.share_pct < 26
    assert found.file == ""


@pytest.mark.parametrize(
    ("kernel", "flags", "device"),
    [
        (TF32, ON, gpu()),
        (TF32, None, gpu()),
        (SGEMM, ON, gpu()),  # the switch is on: something else keeps these off tensor cores
        ("volta_sgemm_128x64_nn", OFF, gpu("Tesla V100-SXM2-32GB", "sm_70")),  # has no TF32
        (SGEMM, OFF, gpu("NVIDIA GeForce RTX 3090", "sm_86")),  # TF32 is no faster there
        ("Cijk_Ailk_Bljk_SB_MT128x128", None, gpu("AMD Instinct MI300X", "gfx942")),
        ("void gemv2T_kernel_val<float>", None, gpu()),
    ],
)
def test_silent_where_the_switch_is_on_or_would_not_help(
    kernel: str, flags: Flags | None, device: Device
) -> None:
    flops = 0.0 if "gemv" in kernel else 2 * 4096.0**3
    made = product(2.6, kernel, flops=flops)
    assert not list(look(case(made, flags=flags, device=device)))


def test_products_below_a_hundredth_of_the_step_are_left_alone() -> None:
    small = product(0.1, SGEMM, sizes=(1024, 1024, 1024))
    assert not list(look(case(small, flags=OFF)))


def test_a_product_that_waits_for_memory_gains_nothing() -> None:
    thin = product(1.0, SGEMM, sizes=(8, 16384, 16384))  # 1.07 GB at 4.8 TB/s: 0.22 ms
    [found] = look(case(thin, flags=OFF))
    assert found.share_pct < 8


def test_convolutions_only_with_their_own_switch_off() -> None:
    plain = "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false, true>"
    one = product(2.6, plain, op="aten::cudnn_convolution")
    assert not list(look(case(one, flags=OFF)))
    off = Flags(matmul_tf32=True, cudnn_tf32=False)
    [found] = look(case(one, flags=off))
    assert "convolutions" in found.claim
    assert "cudnn.allow_tf32 = True" in found.change

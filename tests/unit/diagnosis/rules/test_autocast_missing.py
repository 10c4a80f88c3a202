"""autocast-missing: products in float32 or TF32 where 16 bits would run at a multiple."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rules.precision import autocast_missing as look
from ridgeline.records.run import Flags
from ridgeline.records.sites import OpSite
from tests.unit.diagnosis.rules.made_up_precision import case, cpu, gpu, product

TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_cublas"
SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_ffma_aligna4"
ON = Flags(matmul_tf32=True, cudnn_tf32=True)
OFF = Flags(matmul_tf32=False, cudnn_tf32=True)
BIG = (16384, 4096, 4096)
"""0.55 TFLOP: 1.6 ms in TF32 at 0.7 of the peak."""


def products(kernel: str, ms: float, count: int = 5) -> list[OpSite]:
    return [product(ms, kernel, sizes=BIG) for _ in range(count)]


def test_tf32_products_that_fill_the_step() -> None:
    [found] = look(case(*products(TF32, 1.6), flags=ON))
    assert "TF32 products take 80 % of the step" in found.claim
    # 2.75 TFLOP at 0.9 of 989 TFLOP/s; what goes is the difference of the two times
    assert "8 ms, and 3.09 ms or more in bfloat16" in found.claim
    assert found.share_pct == pytest.approx(49.1, abs=0.1)
    assert found.evidence[0].text == "49.1 % of the step in products"
    assert found.line == 6
    assert found.fix == "autocast"
    assert found.change.splitlines()[:3] == [
        "# before: loss = model(batch)",
        'with torch.autocast("cuda", dtype=torch.bfloat16):',
        "    loss = model(batch)",
    ]


def test_operators_between_products_count_towards_the_bound() -> None:
    streamed = product(2.0, "void at::native::vectorized_elementwise_kernel<4, relu>",
                       op="aten::relu", flops=0.0)  # fmt: skip
    [alone] = look(case(*products(TF32, 1.6), flags=ON))
    [both] = look(case(*products(TF32, 1.6), streamed, flags=ON))
    assert both.share_pct == pytest.approx(alone.share_pct + 10, abs=0.1)
    assert both.claim.endswith("; the 20 % between them runs at half the width")
    assert "10 % in operators between them, half of their time" in both.evidence[0].text


def test_where_tf32_is_off_only_what_comes_beyond_it() -> None:
    [found] = look(case(*products(SGEMM, 10.0), flags=OFF, step_ms=60.0))
    assert "with TF32, and" in found.claim
    assert "beyond what TF32 saves" in found.evidence[0].text
    assert found.share_pct < 10  # TF32 itself saves seven tenths


def test_a_v100_is_told_float16_with_a_scaler() -> None:
    made = case(
        *[product(15.0, "volta_sgemm_128x64_nn", sizes=(4096, 4096, 4096)) for _ in range(5)],
        product(1.0, "vectorized_elementwise_kernel", op="aten::add_", phase="optimizer", flops=0),
        device=gpu("Tesla V100-SXM2-32GB", "sm_70"), step_ms=100.0,
    )  # fmt: skip
    [found] = look(replace(made, sites=replace(made.sites, stacks=False)))
    assert "or more in float16" in found.claim
    assert "torch.float16" in found.change
    before, _, loop = found.change.partition("# in each step:")
    assert before.startswith("scaler = torch.amp.GradScaler")
    assert "GradScaler" not in loop
    assert loop.index("autocast") < loop.index("scaler.scale(loss).backward()")
    assert found.confidence == "medium"


def test_a_trace_slowed_by_stacks_is_less_sure() -> None:
    made = case(*products(TF32, 1.6))
    work = replace(made.work, operator_ms=7.0)
    [found] = look(replace(made, work=work))
    assert found.confidence == "low"


@pytest.mark.parametrize(
    ("kernel", "ms", "dtype"),
    [
        ("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNN", 0.8, "bfloat16"),  # in 16 bits already
        (TF32, 0.4, "float32"),  # a fifth of the step: halved, it would save a tenth
    ],
)
def test_silent_in_16_bits_or_where_little_would_go(kernel: str, ms: float, dtype: str) -> None:
    sites = [product(ms, kernel, dtype, sizes=(4096, 4096, 4096)) for _ in range(5)]
    assert not list(look(case(*sites, flags=ON)))


def test_products_that_wait_for_memory_are_not_worth_casting() -> None:
    # 32 rows by weights of 268 MB: the cast reads as much as the product
    thin = [product(0.09, TF32, sizes=(32, 8192, 8192)) for _ in range(80)]
    assert not list(look(case(*thin, flags=ON)))


def test_a_processor_with_native_bfloat16_is_told_and_another_is_not() -> None:
    sites = [product(8.0, sizes=(1024, 1024, 1024)) for _ in range(10)]
    [found] = look(case(*sites, device=cpu(1e12), flags=Flags(), step_ms=100.0))
    assert "80 ms, and 21.5 ms or more in bfloat16" in found.claim
    assert 'autocast("cpu"' in found.change
    for device in (cpu(60e9, native=False), cpu()):
        assert not list(look(case(*sites, device=device, flags=Flags(), step_ms=100.0)))


CONV = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x32"
NORM = "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>"


def convolutions(ms: float, count: int, norms_ms: float) -> list[OpSite]:
    """1 × 1 convolutions of 256 channels to 64, as in a ResNet: each moves 257 MB, which takes as
    long as its arithmetic in TF32."""
    image, kernel = [64, 256, 56, 56], [64, 256, 1, 1]
    changed = {
        "op": "aten::cudnn_convolution", "dims": (image, kernel, [], []),
        "types": ("float", "float", "", ""), "flops": 2.0 * 64 * 64 * 256 * 56 * 56,
        "bytes": 4.0 * (64 * 256 * 56 * 56 + 64 * 64 * 56 * 56),
    }  # fmt: skip
    norm = product(norms_ms, NORM, op="aten::cudnn_batch_norm", flops=0.0)
    return [*(product(ms, CONV, **changed) for _ in range(count)), norm]


def test_convolutions_in_tf32_are_advised_to_use_16_bits() -> None:
    """What is around them stays in 16 bits, so that only their weights are cast. Casts of their
    images, which do not happen, took all that was saved."""
    [found] = look(case(*convolutions(0.08, 60, 4.0), flags=ON))
    assert "TF32 products take 48 % of the step" in found.claim
    assert found.gain_bound > 1.5


def test_a_conv_net_of_little_else_than_losses_is_silent() -> None:
    few = convolutions(0.08, 10, 0.2)
    loss = product(8.0, "softmax_warp_forward", op="aten::_log_softmax", flops=0.0)
    assert not [*look(case(*few, loss, flags=ON))]


def test_the_bound_holds_for_autocast_alone_with_tf32_off() -> None:
    """A GPT-2 in float32 became 2.50 × as fast by autocast alone: its products take 79 % of 193 ms,
    and most of that would also go with TF32, which the share leaves to its own rule."""
    [found] = look(case(*products(SGEMM, 152.5, 1), flags=OFF, step_ms=193.0))
    assert found.share_pct < 15
    assert found.gain_bound >= 2.50


@pytest.mark.parametrize("kernel", [SGEMM, TF32], ids=["plain", "tf32"])
def test_an_encoder_in_float32_is_told_16_bits(kernel: str) -> None:
    """BERT-base of 64 × 128 tokens: per layer four products of its width, two of four times as
    many columns, and a norm, a dropout and a sum around them in float32."""
    ms = 0.6 if kernel == SGEMM else 0.09
    flags = OFF if kernel == SGEMM else ON
    wide = [product(ms * 4, kernel, sizes=(8192, 768, 3072)) for _ in range(72)]
    own = [product(ms, kernel, sizes=(8192, 768, 768)) for _ in range(144)]
    norms = product(12.0 if kernel == SGEMM else 4.0, NORM, op="aten::native_layer_norm", flops=0.0)
    step_ms = sum(one.device_ns for one in (*wide, *own, norms)) / 1e6 / 0.95
    [found] = look(case(*wide, *own, norms, flags=flags, step_ms=step_ms))
    assert found.fix == "autocast"
    assert found.gain_bound >= 1.3

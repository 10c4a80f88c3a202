from typing import Any

import pytest

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.autotune_off import look
from ridgeline.records.run import Flags
from ridgeline.records.sites import OpSite, SiteKernel
from tests.unit.diagnosis.rules.made_up_kernels import case, site

SOURCE = """\
import torch
def main():
    torch.backends.cudnn.benchmark = False
    model = Net().to(device)
    for x in data:
        model(x)
"""
OFF = Flags(cudnn_benchmark=False, cudnn_deterministic=False)
PLAIN = SiteKernel(name="implicit_convolve_sgemm<float>", count=1, ns=1)


def convolution(ms: float = 40, tflop: float = 3.2, **changed: Any) -> OpSite:
    """3.2 TFLOP of bfloat16 need 4 ms."""
    dims = ([64, 128, 56, 56], [128, 128, 7, 7])
    given: dict[str, Any] = {
        "flops": tflop * 1e12, "dtype": "bfloat16", "kernels": (PLAIN,), **changed
    }  # fmt: skip
    return site("aten::cudnn_convolution", given.pop("dims", dims), ms, **given)


def made(*sites: OpSite, flags: Flags | None = OFF) -> Case:
    return case(*sites, source=SOURCE, flags=flags, called_at="net.py:6")


def test_a_slow_one_without_tensor_cores_is_charged_with_all_beyond_half_the_roofline() -> None:
    (finding,) = look(made(convolution()))
    assert finding.share_pct == pytest.approx(40 - 8)
    assert (finding.line, finding.function, finding.confidence) == (3, "main", "medium")
    assert "without tensor cores, at 10 % of what the GPU can do" in finding.claim


def test_one_with_tensor_cores_is_left_alone() -> None:
    used = (SiteKernel(name="sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32", count=1, ns=1),)
    assert not [*look(made(convolution(kernels=used)))]


def test_convolutions_that_do_well_are_left_alone() -> None:
    assert not [*look(made(convolution(ms=15)))]  # 27 %


def test_when_it_is_on_or_forbidden_nothing_is_said() -> None:
    assert not [*look(made(convolution(), flags=Flags(cudnn_benchmark=True)))]
    both = Flags(cudnn_benchmark=False, cudnn_deterministic=True)
    assert not [*look(made(convolution(), flags=both))]
    assert not [*look(made(convolution(), flags=Flags()))]


def test_changing_shapes_forbid_it() -> None:
    assert not [*look(made(convolution(), convolution(calls=1 / 3)))]


def test_few_channels_and_tiny_calls_have_no_fast_kernel() -> None:
    first = ([64, 3, 224, 224], [64, 3, 7, 7])
    assert not [*look(made(convolution(dims=first)))]
    depthwise = ([64, 128, 56, 56], [128, 1, 7, 7])
    assert not [*look(made(convolution(dims=depthwise)))]
    grouped = ([64, 128, 56, 56], [128, 8, 7, 7])
    assert not [*look(made(convolution(dims=grouped)))]
    assert not [*look(made(convolution(calls=4000.0)))]

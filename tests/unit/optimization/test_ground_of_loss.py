"""How much of a step a loss over many classes takes, by the operators of a traced step."""

import pytest

from ridgeline.diagnosis.case import Case
from ridgeline.optimization.diagnosis import ground_of
from ridgeline.records.run import Capture, DeviceSeen
from ridgeline.records.run_summary import StepTimes
from ridgeline.records.sites import OpSite, Sites

WIDE = ([4096, 50257],)


def share(*sites: OpSite) -> float:
    capture = Capture(device=DeviceSeen(kind="cuda", architecture="sm_90"))
    times = StepTimes(mean_ms=100.0)
    case = Case(on_gpu=True, capture=capture, sites=Sites(ops=sites), times=times)
    return ground_of(case).loss_share


def test_it_is_softmax_loss_and_what_fills_their_gradient() -> None:
    found = share(
        OpSite(op="aten::_log_softmax", dims=WIDE, device_ns=1e6),
        OpSite(op="aten::_log_softmax_backward_data", dims=WIDE, device_ns=2e6),
        OpSite(op="aten::nll_loss_backward", dims=([], *WIDE, [4096]), device_ns=0.5e6),
        OpSite(op="aten::fill_", within=("aten::nll_loss_backward",), dims=WIDE, device_ns=0.5e6),
    )
    assert found == pytest.approx(0.04)


def test_softmax_of_few_classes_and_other_work_on_many_is_not() -> None:
    found = share(
        OpSite(op="aten::_log_softmax", dims=([4096, 1000],), device_ns=1e6),
        OpSite(op="aten::_softmax", dims=([8, 12, 1024, 1024],), device_ns=1e6),
        OpSite(op="aten::mm", dims=([4096, 768], [768, 50257]), device_ns=9e6),
    )
    assert found == 0

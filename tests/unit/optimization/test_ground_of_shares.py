"""The largest and smallest shares of a step, from which bounds are computed."""

import pytest

from ridgeline.diagnosis.case import Case
from ridgeline.optimization.candidates import candidates
from ridgeline.optimization.diagnosis import ground_of
from ridgeline.records.ground import Ground
from ridgeline.records.run import Capture, DeviceSeen
from ridgeline.records.run_summary import PhaseTime, StepTimes
from ridgeline.records.sites import OpSite, SiteKernel, Sites
from tests.unit.diagnosis.made_up_verdict import work


def ground(*sites: OpSite, traced_ms: float, step_ms: float, kind: str = "cpu") -> Ground:
    capture = Capture(device=DeviceSeen(kind=kind), stepping="call")  # type: ignore[arg-type]
    return ground_of(
        Case(
            on_gpu=kind == "cuda", capture=capture, sites=Sites(ops=sites),
            times=StepTimes(mean_ms=step_ms, median_ms=step_ms),
            work=work(0.9, gpu=kind == "cuda", ms=traced_ms),
        )
    )  # fmt: skip


def test_products_may_be_most_of_an_untraced_step_that_tracing_made_seven_times_as_long() -> None:
    """Inference in many small operators: traced, products of 4 ms are a seventh of 28 ms; untraced
    they are all of 4 ms. An int8 model that is 2.50 × as fast was not tried for the seventh."""
    seen = ground(OpSite(op="aten::addmm", host_ns=4e6), traced_ms=28.0, step_ms=4.2)
    assert seen.products_least_share == pytest.approx(1 / 7)
    assert seen.products_share == pytest.approx(4 / 4.2)
    bounds = {one.fix.id: one.bound for one in candidates(seen, [])}
    assert bounds["int8-dynamic"] > 2.5
    assert seen.busy == 1.0


@pytest.mark.parametrize(
    "op", ["aten::_transformer_encoder_layer_fwd", "aten::mkldnn_rnn_layer", "aten::lstm"]
)
def test_layers_that_multiply_inside_count_as_products(op: str) -> None:
    seen = ground(OpSite(op=op, host_ns=5e6), traced_ms=10.0, step_ms=10.0)
    assert seen.products_share == pytest.approx(0.5)


def test_a_kernel_is_known_as_a_product_whatever_operator_launched_it() -> None:
    kernel = SiteKernel(name="triton_tem_fused_mm_3", count=1.0, ns=4e6)
    site = OpSite(op="graph_call_0", device_ns=4e6, kernels=(kernel,))
    seen = ground(site, traced_ms=10.0, step_ms=10.0, kind="cuda")
    assert seen.products_share == pytest.approx(0.4)


def test_without_operators_or_phases_shares_are_not_known() -> None:
    seen = ground(traced_ms=10.0, step_ms=10.0)
    assert seen.products_share is None
    assert seen.products_least_share is None
    assert seen.optimizer_share is None


def test_the_host_s_clock_does_not_tell_how_long_a_gpu_updates() -> None:
    phases = (PhaseTime(phase="optimizer", ms=1.0, ci=(1.0, 1.0), share=0.1),)
    times = StepTimes(mean_ms=10.0, phases=phases, clock="host")
    assert ground_of(Case(capture=Capture(), times=times)).optimizer_share == pytest.approx(0.1)
    assert ground_of(Case(on_gpu=True, capture=Capture(), times=times)).optimizer_share is None

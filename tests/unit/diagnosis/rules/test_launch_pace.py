"""What is a small kernel depends on the host that launches the next one."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules._launch import SMALL_KERNEL_NS, left, pace_ns, pauses
from ridgeline.diagnosis.rules.small_launches import cuda_graph_candidate, small_kernels
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Cause, Gap
from tests.unit.diagnosis.rules.made_up_launch import case, site

# ResNet-50, batch 32, float32 on an H200: a traced run's kernels a step by length in µs
LENGTHS = {3: 81, 8: 73, 13: 102, 18: 94, 23: 103, 28: 55, 33: 38, 38: 25, 43: 12, 48: 16, 53: 12,
           58: 5, 105: 45}  # fmt: skip
STEP_MS, BUSY = 28.5, 0.612
IDLE: dict[Cause, float] = {"launch-bound": 0.314, "other host": 0.055, "between kernels": 0.019}


def kernels() -> list[OpSite]:
    return [
        site("cudnn_convolution", 1, 0.02, module=f"B_{us}_{i}", device_ms=us / 1e3,
             dims=((us, i + 1),))
        for us, count in LENGTHS.items() for i in range(count)
    ]  # fmt: skip


def resnet(causes: dict[Cause, float] | None = None, *, busy: float = BUSY, ms: float = STEP_MS,
           kind: str = "run") -> Case:  # fmt: skip
    return case(kernels(), gpu=True, busy=busy, ms=ms, causes=causes or IDLE, kind=kind)


def away(whole: Case, ms: float, cause: Cause = "other host") -> Case:
    """With the host away so long in each of the three traced steps."""
    assert whole.study is not None
    gap = Gap(device=0, start_ns=0, dur_ns=round(ms * 1e6), cause=cause, before="k", after="k")
    idle = replace(whole.study.idle, top=(gap,) * 3)
    return replace(whole, study=replace(whole.study, idle=idle))


def test_kernels_of_26_us_are_small_for_a_host_that_takes_40() -> None:
    whole = resnet()
    assert pace_ns(whole) == pytest.approx(40_000, rel=0.05)
    (one,) = cuda_graph_candidate(whole)
    assert "waits 36.9 % of each step for Python to launch the same 661 kernels" in one.claim
    assert one.share_pct < 100 * (1 - BUSY)
    assert 1.5 < one.gain_bound <= with_tolerance(1 / BUSY)
    assert any("39.9 µs" in told.text for told in one.evidence)


def test_sizes_that_change_are_small_kernels_as_well() -> None:
    whole = resnet()
    changing = tuple(replace(s, calls=s.calls + 1 / 3) for s in whole.sites.ops)
    whole = replace(whole, sites=replace(whole.sites, ops=changing))
    assert not [*cuda_graph_candidate(whole)]
    (one,) = small_kernels(whole)
    assert "under 39.9 µs" in one.evidence[1].text


def test_a_host_that_keeps_up_and_one_that_waits_for_data_are_silent() -> None:
    for whole in (
        resnet({"launch-bound": 0.08, "between kernels": 0.04}, busy=0.88, ms=19.8),
        resnet({"input": 0.35, "launch-bound": 0.04}),
        resnet({"synchronisation": 0.3, "launch-bound": 0.09}),
    ):
        assert not [*cuda_graph_candidate(whole)]
        assert not [*small_kernels(whole)]


def test_a_host_that_takes_longer_than_any_launch_does_something_else() -> None:
    slow = resnet({"launch-bound": 0.8}, busy=0.2, ms=87.2)  # 132 µs a kernel
    assert pace_ns(slow) == SMALL_KERNEL_NS
    assert not [*cuda_graph_candidate(slow)]


def test_one_long_pause_is_not_launching() -> None:
    program: dict[Cause, float] = {"other host": 0.33, "launch-bound": 0.05}
    whole = away(resnet(program), 0.33 * STEP_MS)  # 9.4 ms in one piece: a metric in NumPy, say
    assert pauses(whole) == pytest.approx(0.33 - 1 / STEP_MS, abs=0.01)
    assert left(whole) < 0.1
    assert not [*cuda_graph_candidate(whole)]
    assert not [*small_kernels(whole)]


def test_one_long_operator_on_the_processor_is_not_launching() -> None:
    whole = away(resnet({"launch-bound": 0.38}), 0.35 * STEP_MS, "launch-bound")
    assert left(whole) < 0.1
    assert not [*cuda_graph_candidate(whole)]


def test_short_ways_and_waits_for_others_are_no_pauses() -> None:
    for whole in (away(resnet(), 0.9), away(resnet(), 9.0, "input")):
        assert pauses(whole) == 0
        assert [*cuda_graph_candidate(whole)]


def test_a_pause_lowers_the_share_and_leaves_the_bound() -> None:
    (without,) = cuda_graph_candidate(resnet())
    (one,) = cuda_graph_candidate(away(resnet(), 2.0))
    assert one.share_pct == pytest.approx(without.share_pct - 100 / STEP_MS, abs=0.2)
    assert one.gain_bound == pytest.approx(without.gain_bound, abs=0.002)


def test_a_trace_with_stacks_alone_takes_the_host_for_half_as_slow() -> None:
    traced = resnet({"launch-bound": 0.65}, busy=0.35, ms=49.8, kind="trace")
    assert pace_ns(traced) == pytest.approx(37_700, rel=0.02)
    assert [*cuda_graph_candidate(traced)]

"""A step's time: which steps count, the interval, phases that add up."""

import numpy as np
import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.step_times import (
    efficiency,
    mean_interval,
    median_interval,
    rate_ms,
    share_of,
    step_times,
    throughput,
)
from ridgeline.records.facts import because
from ridgeline.records.machine import MAX_SHARE_OF_CEILING, Ceiling, Device
from ridgeline.records.run import Step
from ridgeline.records.run_summary import StepTimes
from ridgeline.records.step_work import StepWork
from ridgeline.records.verdict import DoubtCode
from ridgeline.trace.analyses.recorded_calls import OpWork
from ridgeline.trace.analyses.roofline import Hint, row_of
from ridgeline.trace.analyses.step_work import limits
from tests.unit.diagnosis.made_up_steps import BASE, MS, noise, noisy, step
from tests.unit.diagnosis.made_up_verdict import capture, limit


def test_a_steady_program_has_its_median_inside_a_narrow_interval() -> None:
    found = step_times(noisy(40), "optimizer")
    assert found.median_ms == pytest.approx(100, rel=0.01)
    assert found.ci is not None
    assert found.ci[0] <= 100 <= found.ci[1]
    assert found.ci[1] - found.ci[0] < 3
    assert (found.steps, found.counted, found.stepping) == (40, 40, "optimizer")
    assert found.trust.confidence == "good"


def test_phases_add_up_to_the_mean_step() -> None:
    found = step_times(noisy(40, spread=0.2), "optimizer")
    assert found.mean_ms is not None
    assert sum(p.ms for p in found.phases) == pytest.approx(found.mean_ms)
    assert sum(p.share for p in found.phases) == pytest.approx(1)
    assert all(p.ci[0] <= p.ms <= p.ci[1] for p in found.phases)


def test_steady_steps_that_were_only_timed_have_the_phases_of_those_before_them() -> None:
    """Return steps so short that only every 32nd is detailed, after a detailed warm-up."""
    warming = [step(i, ms=100.0 - i) for i in range(30)]
    timed = [replace(one, host={}, detailed=False) for one in noisy(60, first=30)]
    steps = [*warming, *timed]
    found = step_times(steps, "optimizer")
    assert found.median_ms == pytest.approx(100, rel=0.02)
    assert found.mean_ms is not None
    assert sum(p.ms for p in found.phases) == pytest.approx(found.mean_ms)
    assert limit(found, capture=capture(gpu=False)).bound != "unknown"


def test_on_a_cpu_there_is_no_transfer_and_its_time_is_other() -> None:
    found = step_times(noisy(20), "optimizer")
    assert [p.phase for p in found.phases] == ["input", "forward", "backward", "optimizer", "other"]
    assert share_of(found, "other") == pytest.approx(0.07, abs=0.001)


def test_on_a_gpu_the_devices_clock_is_used_where_most_steps_have_it() -> None:
    steps = noisy(20, device=True)
    steps[3] = step(3, ms=5.0)  # a graph was captured: no events
    found = step_times(steps, "optimizer")
    assert found.clock == "device"
    assert found.steps == 19
    assert share_of(found, "transfer") == pytest.approx(0.02, abs=0.001)


def test_few_device_times_are_not_enough_for_the_devices_clock() -> None:
    steps = [*noisy(15), *noisy(5, first=15, device=True)]
    assert step_times(steps, "optimizer").clock == "host"


def test_settling_traced_and_disturbed_steps_are_not_timed() -> None:
    steps = [
        *[step(i, ms=900, window="settle") for i in range(3)],
        *noisy(10, first=3),
        *[step(i, ms=170, window="traced") for i in range(13, 16)],
        step(16, ms=4000, window="disturbed"),
        *noisy(20, first=17, seed=2),
    ]
    found = step_times(steps, "optimizer")
    assert found.median_ms == pytest.approx(100, rel=0.02)
    assert (found.steps, found.counted, found.warmup_steps) == (30, 37, 3)


def test_warm_up_inside_the_window_is_cut() -> None:
    slow = [step(i, ms=ms) for i, ms in enumerate([800, 400, 180, 140, 130])]
    found = step_times([*slow, *noisy(40, first=5)], "optimizer")
    assert found.warmup_steps == 5
    assert found.mean_ms == pytest.approx(100, rel=0.01)


def test_compiling_steps_are_named_and_left_out() -> None:
    steps = noisy(30)
    steps[0] = step(0, ms=30_000, compile_ms=29_000)
    steps[12] = step(12, ms=9_000, compile_ms=8_000)
    found = step_times(steps, "optimizer")
    assert found.compile_steps == (0, 12)
    assert found.mean_ms == pytest.approx(100, rel=0.02)


def test_a_checkpoint_every_twenty_steps_does_not_ruin_the_phases() -> None:
    steps = noisy(40)
    for index in (9, 29):
        steps[index] = step(index, ms=5_000)  # all of it outside the phases
    found = step_times(steps, "optimizer")
    assert found.mean_ms == pytest.approx(100, rel=0.01)
    assert share_of(found, "other") < 0.1
    (doubt,) = found.trust.doubts
    assert (doubt.code, doubt.facts["pauses"], doubt.facts["steps"]) == (DoubtCode.PAUSES, 2, 40)
    assert found.trust.confidence == "good"


def test_an_evaluation_now_and_then_is_left_out_by_its_name() -> None:
    steps = noisy(40)
    steps[20] = step(20, {**BASE, "evaluation": 2_000.0})
    found = step_times(steps, "optimizer")
    assert [doubt.code for doubt in found.trust.doubts] == [DoubtCode.EVALUATIONS]
    assert share_of(found, "evaluation") == 0


def test_pauses_in_every_third_step_are_how_the_program_runs() -> None:
    steps = [step(i, {**BASE, "evaluation": 400.0} if i % 3 == 0 else BASE) for i in range(42)]
    found = step_times(steps, "optimizer")
    assert share_of(found, "evaluation") == pytest.approx(133 / 233, abs=0.03)


def test_a_pause_in_every_tenth_step_is_left_out_wherever_the_window_begins() -> None:
    """Of 33 steps, 4 are tenth ones."""
    for first in range(10):
        steps = [
            step(i, {**BASE, "other": 900.0} if (i + first) % 10 == 0 else BASE) for i in range(33)
        ]
        found = step_times(steps, "optimizer")
        assert [doubt.code for doubt in found.trust.doubts] == [DoubtCode.PAUSES], first
        assert found.pause_share > 0.4


def test_a_loader_that_makes_every_eighth_step_wait_keeps_its_waits() -> None:
    """With 8 workers that are too slow the median step has no wait at all."""
    steps = [step(i, {**BASE, "input": 700.0 if i % 8 == 0 else 0.1}) for i in range(40)]
    found = step_times(steps, "optimizer")
    assert found.median_ms is not None
    assert found.mean_ms is not None
    assert found.median_ms < 100 < found.mean_ms
    assert share_of(found, "input") > 0.4
    assert rate_ms(found) == found.mean_ms
    assert [doubt.code for doubt in found.trust.doubts] == [DoubtCode.UNEVEN_STEPS]


def test_rates_come_from_the_median_of_even_steps() -> None:
    found = step_times(noisy(40), "optimizer")
    assert rate_ms(found) == found.median_ms


def test_steps_that_never_become_steady_are_said_to_be_so() -> None:
    steps = [step(i, ms=100 * 1.03**i * f) for i, f in enumerate(noise(40, 3, 0.01))]
    found = step_times(steps, "optimizer")
    assert found.trust.confidence == "doubtful"
    assert [doubt.code for doubt in found.trust.doubts] == [DoubtCode.SLOWING]
    assert found.steps == 20


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_steps_give_what_can_be_had_and_say_so(count: int) -> None:
    found = step_times(noisy(count), "optimizer")
    assert found.median_ms == pytest.approx(100, rel=0.1)
    assert (found.ci is None) == (count == 1)
    assert found.trust.confidence == "doubtful"


def test_no_steps_give_nothing_and_say_so() -> None:
    found = step_times([], "")
    assert found.median_ms is None
    assert found.phases == ()
    assert found.trust.confidence == "unreliable"


def test_a_program_of_two_steps_is_timed_by_its_second() -> None:
    steps = [step(0, ms=2000, window="settle"), step(1, ms=100, window="settle")]
    found = step_times(steps, "optimizer")
    assert found.median_ms == 100
    assert found.trust.doubts == (because(DoubtCode.NO_TIMED_WINDOW, steps=1),)


def test_only_compiling_steps_are_no_time() -> None:
    found = step_times([step(0, ms=9000, compile_ms=8000)], "optimizer")
    assert found.median_ms is None
    assert found.trust.doubts == (because(DoubtCode.ALL_COMPILING, steps=1),)


def test_phases_that_pass_the_step_by_a_little_are_held_to_it() -> None:
    steps = [Step(index=i, start_ns=0, dur_ns=10 * MS, host={"forward": 11 * MS}) for i in range(8)]
    found = step_times(steps, "call")
    assert [(p.phase, round(p.ms, 6)) for p in found.phases] == [("forward", 10)]


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_intervals_hold_the_truth_where_neighbours_resemble_each_other(correlation: float) -> None:
    held = np.zeros(2)
    for seed in range(300):
        series = 100 * np.array(noise(40, seed, 0.03, correlation))
        for i, (low, high) in enumerate((median_interval(series), mean_interval(series))):
            held[i] += low <= 100 <= high
    assert (held / 300 >= 0.87).all(), held


def test_pauses_left_out_say_their_share_and_the_rate_with_them() -> None:
    """38 steps of 0.1 s and two of 2.9 s: 9.6 s for 40 batches of 32."""
    steps = [step(i, ms=2_900 if i in (9, 29) else 100) for i in range(40)]
    found = step_times(steps, "optimizer")
    assert found.pause_share == pytest.approx(5.8 / 9.6)
    kept = [s for s in steps if s.dur_ns < 1000 * MS]
    rate = throughput(found, kept, pauses=2)
    assert rate.samples_s == pytest.approx(320)
    assert rate.samples_s_with_pauses == pytest.approx(40 * 32 / 9.6)
    assert throughput(found, kept).samples_s_with_pauses is None


PEAK = Ceiling(quantity="matmul", value=1e11, unit="FLOP/s", source="measured", dtype="float32")
COPY = Ceiling(quantity="copy", value=1e10, unit="B/s", source="measured")
DEVICE = Device(kind="cpu", index=0, name="made up", memory_bytes=2**34, ceilings=(PEAK, COPY))
TIMES = StepTimes(median_ms=10.0, mean_ms=10.0, steps=50, counted=50)


def work(share: float) -> StepWork:
    """A step of 10 ms that does this share of what the ceiling allows."""
    return StepWork(
        device="cpu", steps=5, step_ms=10.0, flops=share * 1e9, all_flops=share * 1e9, bytes=1e6,
        skipped_flops=0.0, dtype="float32", coverage=1.0, op_share=0.9, input_share=0.0,
        communication_share=0.0, copy_share=0.0, overhead_share=0.1, operators=10, short_share=0.0,
        operator_ms=9.0,
    )  # fmt: skip


def test_a_share_of_a_usable_ceiling_is_the_mfu() -> None:
    found = efficiency(work(0.5), TIMES, DEVICE)
    assert found.mfu == pytest.approx(0.5)
    assert found.ceiling_state == "usable"


@pytest.mark.parametrize("mark", ["disturbed", "exceeded"])
def test_a_doubtful_ceiling_gives_no_mfu(mark: str) -> None:
    low = replace(PEAK, **{mark: True})
    found = efficiency(work(0.5), TIMES, replace(DEVICE, ceilings=(low, COPY)))
    assert found.mfu is None
    assert found.ceiling_state == mark


def test_a_ceiling_the_program_exceeds_gives_no_mfu() -> None:
    found = efficiency(work(1.34), TIMES, DEVICE)
    assert found.mfu is None
    assert found.ceiling_state == "exceeded"
    assert found.ceiling_dtype == "float32"


def test_the_datasheet_serves_where_the_measurement_was_disturbed() -> None:
    sheet = replace(PEAK, source="datasheet", value=2e11)
    device = replace(DEVICE, ceilings=(replace(PEAK, disturbed=True), sheet, COPY))
    assert efficiency(work(0.5), TIMES, device).mfu == pytest.approx(0.25)


@pytest.mark.parametrize("share", [0.5, 1.04, 1.3, 4.0])
def test_no_operator_reaches_more_than_its_ceiling(share: float) -> None:
    for flops, moved in ((1e9, 4.0), (1.0, 1e8)):  # a product, a copy
        one = OpWork(flops=int(flops), bytes=int(moved), dtype="float32")
        took_ns = round(1e7 / share)
        row = row_of("aten::mm", "", one, Hint(), 1, took_ns, took_ns, DEVICE)
        assert row.over_ceiling == (share > MAX_SHARE_OF_CEILING)
        assert row.attained is None or row.attained <= MAX_SHARE_OF_CEILING
        reached = limits((row,)).attained
        assert reached is not None
        assert reached <= 1.0


def test_an_operator_has_no_share_of_a_disturbed_ceiling() -> None:
    device = replace(DEVICE, ceilings=(PEAK, replace(COPY, disturbed=True)))
    one = OpWork(flops=1, bytes=10**8, dtype="float32")
    row = row_of("aten::add", "", one, Hint(), 1, 10**7, 10**7, device)
    assert (row.bound, row.attained, row.over_ceiling) == ("", None, False)
    assert limits((row,)).attained is None

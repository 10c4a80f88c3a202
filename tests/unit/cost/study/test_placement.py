"""Which ceiling a model stands under, on machines and costs made by hand."""

import pytest
from msgspec.structs import replace

from ridgeline.cost.counting.account import assemble
from ridgeline.cost.study.placement import ceiling_dtype, place
from ridgeline.records.cost import Cost, OpCost, Phase, Totals
from ridgeline.records.latency import Latency, Summary
from ridgeline.records.machine import Ceiling, Device

PEAK, SPEED, LAUNCH = 1e12, 1e10, 1e-5


def device(*more: Ceiling) -> Device:
    """1 TFLOP/s in float32, 10 GB/s, 10 µs a launch: a ridge at 100 FLOP/B."""
    ceilings = (
        Ceiling(quantity="matmul", value=PEAK, unit="FLOP/s", source="measured", dtype="float32"),
        Ceiling(quantity="triad", value=SPEED, unit="B/s", source="measured"),
        Ceiling(quantity="launch", value=LAUNCH, unit="s", source="measured"),
        *more,
    )
    return Device(kind="cpu", index=0, name="paper", memory_bytes=2**30, ceilings=ceilings)


def op(
    flops: int, moved: int, calls: int = 1, dtype: str = "float32", phase: Phase = "forward"
) -> OpCost:
    totals = Totals(calls=calls, flops=flops, all_flops=flops, bytes=moved)
    return OpCost(op="x::y", module="", phase=phase, dtype=dtype, totals=totals, formulated=True)


def cost(*ops: OpCost) -> Cost:
    return assemble(ops, (), "fake", ())


def took(milliseconds: float, issue_ms: float | None = None) -> Latency:
    ns = milliseconds * 1e6
    summary = Summary(
        count=9, median_ns=ns, ci_low_ns=ns, ci_high_ns=ns, mean_ns=ns, std_ns=0, min_ns=ns,
        max_ns=ns, iqr_ns=0,
    )  # fmt: skip
    return Latency(
        summary=summary, samples_ns=(ns,), block_calls=1, warmup_ns=(), steady=True, clock="wall",
        wall_median_ns=ns, issue_median_ns=None if issue_ms is None else issue_ms * 1e6,
    )  # fmt: skip


def test_much_arithmetic_on_few_bytes_is_compute_bound() -> None:
    found = place(cost(op(10**11, 10**6)), ("forward",), device(), None, tf32=False)
    assert found.bottleneck == "compute-bound"
    assert found.compute_floor_ms == pytest.approx(100)
    assert found.memory_floor_ms == pytest.approx(0.1)
    assert found.roofline_ms == pytest.approx(100)
    assert found.ridge_intensity == pytest.approx(100)
    assert found.intensity == pytest.approx(1e5)
    assert found.ceiling_source == "measured"


@pytest.mark.parametrize("mark", ["disturbed", "exceeded"])
def test_a_doubtful_ceiling_still_classes_the_model_but_gives_no_share(mark: str) -> None:
    low = tuple(replace(one, **{mark: True}) for one in device().ceilings)
    found = place(
        cost(op(10**11, 10**6)), ("forward",), replace(device(), ceilings=low), took(200),
        tf32=False,
    )  # fmt: skip
    assert found.bottleneck == "compute-bound"
    assert found.ceiling_state == mark
    assert found.percent_of_ceiling is None


def test_a_model_faster_than_the_ceiling_has_no_share_of_it() -> None:
    found = place(cost(op(10**11, 10**6)), ("forward",), device(), took(75), tf32=False)
    assert found.ceiling_state == "exceeded"
    assert found.percent_of_ceiling is None


def test_many_bytes_for_little_arithmetic_is_memory_bound() -> None:
    found = place(cost(op(10**6, 10**9)), ("forward",), device(), None, tf32=False)
    assert found.bottleneck == "memory-bound"
    assert found.memory_floor_ms == pytest.approx(100)
    assert found.compute_floor_ms == pytest.approx(0.001)
    assert found.roofline_ms == pytest.approx(100)


def test_many_small_operators_are_overhead_bound() -> None:
    found = place(cost(op(10**6, 10**6, calls=1000)), ("forward",), device(), None, tf32=False)
    assert found.bottleneck == "overhead-bound"
    assert found.overhead_ms == pytest.approx(10)
    assert found.operators == 1000


def test_each_operator_is_bound_by_its_own_limit() -> None:
    """Summed first, the two would balance on the ridge; apart, each pays its own floor."""
    ops = (op(10**10, 10**6), op(10**3, 2 * 10**8))
    found = place(cost(*ops), ("forward",), device(), None, tf32=False)
    assert found.compute_floor_ms == pytest.approx(10)
    assert found.memory_floor_ms == pytest.approx(20.1)
    assert found.roofline_ms == pytest.approx(30)
    assert found.bottleneck == "memory-bound"


def test_an_operator_that_moves_nothing_is_not_issued() -> None:
    found = place(cost(op(0, 0, calls=10**6), op(1, 8)), ("forward",), device(), None, tf32=False)
    assert found.operators == 1


def test_only_the_phases_asked_for_count() -> None:
    both = cost(op(10**9, 10**6), op(10**12, 10**6, phase="backward"))
    forward = place(both, ("forward",), device(), None, tf32=False)
    step = place(both, ("forward", "backward"), device(), None, tf32=False)
    assert forward.compute_floor_ms == pytest.approx(1)
    assert step.compute_floor_ms == pytest.approx(1001)


def test_a_timed_model_has_a_share_of_the_ceiling() -> None:
    found = place(cost(op(10**11, 10**6)), ("forward",), device(), took(200), tf32=False)
    assert found.measured_ms == pytest.approx(200)
    assert found.flops_per_second == pytest.approx(5e11)
    assert found.percent_of_ceiling == pytest.approx(50)
    assert found.bytes_per_second == pytest.approx(5e6)


def test_an_untimed_model_has_no_rates() -> None:
    found = place(cost(op(10**11, 10**6)), ("forward",), device(), None, tf32=False)
    rates = (found.flops_per_second, found.percent_of_ceiling, found.measured_ms)
    assert rates == (None, None, None)


def test_float32_goes_against_the_tf32_ceiling_only_where_tf32_is_on() -> None:
    fast = Ceiling(quantity="matmul", value=8e12, unit="FLOP/s", source="datasheet", dtype="tf32")
    work = cost(op(8 * 10**12, 10**6))
    on = place(work, ("forward",), device(fast), None, tf32=True)
    off = place(work, ("forward",), device(fast), None, tf32=False)
    assert (on.dtype, on.compute_floor_ms) == ("tf32", pytest.approx(1000))
    assert (off.dtype, off.compute_floor_ms) == ("float32", pytest.approx(8000))
    assert on.ceiling_source == "datasheet"


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float8_e4m3fn", "float8"),
        ("quint8", "int8"),
        ("complex64", "float32"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_a_dtype_is_looked_up_as_the_machine_lists_it(dtype: str, name: str) -> None:
    assert ceiling_dtype(dtype, tf32=False) == name


def test_each_dtype_is_compared_with_its_own_ceiling() -> None:
    half = Ceiling(
        quantity="matmul", value=10e12, unit="FLOP/s", source="measured", dtype="bfloat16"
    )
    work = cost(op(10**12, 10**3), op(10**12, 10**3, dtype="bfloat16"))
    found = place(work, ("forward",), device(half), None, tf32=False)
    assert found.compute_floor_ms == pytest.approx(1000 + 100)


def test_a_measured_ceiling_is_taken_before_the_datasheet() -> None:
    sheet = Ceiling(
        quantity="matmul", value=9e15, unit="FLOP/s", source="datasheet", dtype="float32"
    )
    found = place(cost(op(1, 1)), ("forward",), device(sheet), None, tf32=False)
    assert found.ceiling_flops == PEAK


def test_a_device_that_waits_for_its_host_is_overhead_bound() -> None:
    work = cost(op(10**9, 10**4))  # 1 ms of arithmetic, one launch
    waiting = place(work, ("forward",), device(), took(5, issue_ms=4.9), tf32=False)
    assert waiting.host_limited
    assert waiting.bottleneck == "overhead-bound"
    assert waiting.overhead_ms == pytest.approx(3.9)
    busy = place(work, ("forward",), device(), took(5, issue_ms=0.5), tf32=False)
    assert not busy.host_limited
    assert busy.bottleneck == "compute-bound"


def test_without_ceilings_there_are_no_shares() -> None:
    bare = Device(kind="cpu", index=0, name="unknown", memory_bytes=1)
    found = place(cost(op(10**9, 10**4)), ("forward",), bare, took(5), tf32=False)
    assert found.percent_of_ceiling is None
    assert found.ceiling_source == "unknown"
    assert found.ridge_intensity == 0

"""A share of a ceiling is given only if the ceiling is usable, and is never above 100 %."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.efficiency import efficiency
from ridgeline.records.machine import MAX_SHARE_OF_CEILING, Ceiling, Device
from ridgeline.records.run_summary import StepTimes
from ridgeline.records.step_work import StepWork
from ridgeline.trace.analyses.op_work import OpWork
from ridgeline.trace.analyses.roofline import Hint, row_of
from ridgeline.trace.analyses.step_work import bound

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
        reached = bound((row,)).attained
        assert reached is not None
        assert reached <= 1.0


def test_an_operator_has_no_share_of_a_disturbed_ceiling() -> None:
    device = replace(DEVICE, ceilings=(PEAK, replace(COPY, disturbed=True)))
    one = OpWork(flops=1, bytes=10**8, dtype="float32")
    row = row_of("aten::add", "", one, Hint(), 1, 10**7, 10**7, device)
    assert (row.bound, row.attained, row.over_ceiling) == ("", None, False)
    assert bound((row,)).attained is None

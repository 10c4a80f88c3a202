"""Growth of the host's memory, also after the steps were counted."""

import pytest

from ridgeline.diagnose.memory_use import memory_use
from ridgeline.records.run import Capture, DeviceSeen, Window
from ridgeline.records.step import Step, StepMemory
from ridgeline.records.telemetry import ProcessSample, Telemetry

MS, MIB = 1_000_000, 2**20


def told(each: float, *, gpu: bool = False) -> tuple[Capture, list[Step], list[Telemetry]]:
    """Twenty steps of 50 ms counted, eighty more alone; ten samples a second."""
    end = 100 * 50 * MS
    captured = Capture(
        device=DeviceSeen(kind="cuda" if gpu else "cpu"),
        windows=(Window(kind="alone", first_step=20, start_ns=end // 5, end_ns=end),),
    )
    memory = StepMemory(allocated_bytes=MIB)
    steps = [
        Step(index=i, start_ns=i * 50 * MS, dur_ns=50 * MS, memory=memory if gpu else None)
        for i in range(20)
    ]
    sizes = {at: int(300 * MIB + each * at / 50 / MS) for at in range(0, end, 100 * MS)}
    watched = [
        Telemetry(at_ns=at, processes=(ProcessSample(pid=1, rss_bytes=size),))
        for at, size in sizes.items()
    ]
    return captured, steps, watched


@pytest.mark.parametrize("each", [0.0, 2.0 * MIB])
def test_steps_that_were_not_counted_are_told_by_the_clock(each: float) -> None:
    found = memory_use(*told(each))
    assert found.growth_bytes_per_step == pytest.approx(each, rel=0.02)
    assert found.host_growth_bytes_per_step == found.growth_bytes_per_step


def test_on_a_gpu_the_host_is_looked_at_beside_the_device() -> None:
    found = memory_use(*told(2.0 * MIB, gpu=True))
    assert found.growth_bytes_per_step is None
    assert found.host_growth_bytes_per_step == pytest.approx(2.0 * MIB, rel=0.02)

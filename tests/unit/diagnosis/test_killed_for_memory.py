"""A program that the system killed for memory is recognised from outside."""

import pytest

from ridgeline.diagnosis.killed_for_memory import with_death_for_memory
from ridgeline.diagnosis.run_read import RunRead
from ridgeline.records.run import (
    Capture,
    Environment,
    OutOfMemory,
    ProcessSample,
    RunFile,
    Status,
    Step,
    Target,
    Telemetry,
)
from ridgeline.records.run_summary import MemoryUse

GIB, MS = 2**30, 1_000_000


def read(
    last_gib: float, *, exit_code: int | None = -9, oom_kills: int = 0, ended: Status = "running",
    available: int | None = None,
) -> RunRead:  # fmt: skip
    """Sixteen GiB of memory, of which the program takes one at first and `last_gib` in the end."""
    sizes = [GIB + (last_gib - 1) * GIB * i / 49 for i in range(50)]
    return RunRead(
        run=RunFile(
            name="r", target=Target(kind="script", name="train.py"), exit_code=exit_code,
            oom_kills=oom_kills, environment=Environment(memory_bytes=16 * GIB),
        ),
        capture=Capture(ended=ended),
        steps=tuple(Step(index=i, start_ns=i * 50 * MS, dur_ns=50 * MS) for i in range(40)),
        telemetry=tuple(
            Telemetry(at_ns=i * 100 * MS, host_memory_available_bytes=available,
                      processes=(ProcessSample(pid=1, rss_bytes=int(size)),))
            for i, size in enumerate(sizes)
        ),
    )  # fmt: skip


def death(run: RunRead, growth: float | None = None) -> OutOfMemory | None:
    found = with_death_for_memory(run, MemoryUse(host_growth_bytes_per_step=growth))
    return found.capture.out_of_memory if found.capture is not None else None


@pytest.mark.parametrize(
    "run",
    [read(15.0), read(2.0, oom_kills=1), read(2.0, oom_kills=1, exit_code=None),
     read(2.0, available=GIB // 8)],
    ids=["full", "counted by the kernel", "without an exit code", "the whole host is short"],
)  # fmt: skip
def test_a_kill_with_memory_full_was_for_memory(run: RunRead) -> None:
    found = death(run)
    assert found is not None
    assert (found.on, found.killed, found.sure) == ("host", True, True)
    assert found.total_bytes == 16 * GIB


def test_growth_before_a_kill_makes_memory_a_likely_cause_only() -> None:
    found = death(read(4.0), growth=40.0 * 2**20)
    assert found is not None
    assert not found.sure
    assert found.allocated_bytes == 4 * GIB


@pytest.mark.parametrize(
    "run",
    [read(4.0), read(15.0, exit_code=-15), read(15.0, exit_code=1), read(15.0, ended="raised")],
    ids=["no growth", "asked to end", "ended itself", "said goodbye"],
)
def test_other_ends_are_not_for_memory(run: RunRead) -> None:
    assert death(run) is None

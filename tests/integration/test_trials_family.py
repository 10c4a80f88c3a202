"""Memory of a real program with its workers: what each holds counts, and what they share once."""

from pathlib import Path

import pytest

from ridgeline.harness.trials.trial_process import run
from ridgeline.records.run import Target
from ridgeline.records.trial import Plan, Trial

pytestmark = [
    pytest.mark.reliability,  # whole programs: `make programs`, and CI
    pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells it"),
]

PROGRAM = str(Path(__file__).with_name("workers_program.py"))
MB = 2**20


def trial(home: Path, workers: int, megabytes: int) -> Trial:
    target = Target(kind="script", name=PROGRAM, arguments=(str(workers), str(megabytes)))
    found = run(target, Plan(steps=40, trains=False), home, timeout_s=120)
    assert found.trial is not None, found.failure
    return found.trial


def test_memory_moved_into_workers_is_not_saved(tmp_path: Path) -> None:
    alone = trial(tmp_path / "alone", 0, 150)
    idle = trial(tmp_path / "idle", 2, 1)
    moved = trial(tmp_path / "moved", 2, 150)
    assert alone.peak_bytes == alone.own_peak_bytes
    assert alone.others_bytes == 0
    # By its own process it would be a gain of 150 MB.
    assert moved.own_peak_bytes < alone.own_peak_bytes - 100 * MB
    assert moved.peak_bytes > alone.peak_bytes + 100 * MB
    assert moved.peak_bytes - idle.peak_bytes == pytest.approx(298 * MB, abs=60 * MB)
    # 200 MB and torch itself, in two forks, would be 1 GB.
    assert idle.others_bytes < 150 * MB

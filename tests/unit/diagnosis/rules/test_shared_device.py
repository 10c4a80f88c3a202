from pathlib import Path

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.conclusion import concluded_case
from ridgeline.diagnosis.findings import findings
from ridgeline.diagnosis.recorded_run import Attempts
from ridgeline.diagnosis.rules.shared_machine import SHARED_DEVICE as RULE
from ridgeline.diagnosis.rules.shared_machine import shared_device as look
from ridgeline.records.run import DeviceSample
from ridgeline.records.run_summary import Telemetered
from ridgeline.records.trace import KernelRow
from tests.unit.diagnosis import made_up_run_directory
from tests.unit.diagnosis import made_up_verdict as made
from tests.unit.diagnosis.rules.made_up_machine import case, looks, only


def gpu(others: int) -> DeviceSample:
    return DeviceSample(index=0, utilisation_percent=95, others=others, ours=True)


def kernel(mean: float, least: int) -> KernelRow:
    return KernelRow(
        name="gemm", category="matmul", count=30, total_ns=round(30 * mean), share=1.0,
        mean_ns=mean, least_ns=least, most_ns=round(2 * mean),
    )  # fmt: skip


def test_work_on_the_gpu_that_is_not_this_programs() -> None:
    seen = Telemetered(gpu_utilisation=0.95)
    found = only(look(case(looks(gpu(1)), gpu=True, busy=0.5, seen=seen)))
    assert "1 other program" in found.claim
    assert found.share_pct == pytest.approx(45, abs=0.5)
    assert found.confidence == "medium"


def test_kernels_that_take_turns_on_a_full_gpu() -> None:
    study = replace(made.study({"other host": 0.02}), kernels=(kernel(2e6, 1_000_000),))
    found = only(look(case(looks(gpu(1)), gpu=True, busy=0.97, study=study)))
    assert found.confidence == "low"
    assert found.share_pct == pytest.approx(50, abs=0.5)


def test_a_process_that_only_holds_memory_is_nothing() -> None:
    steady = replace(made.study({"other host": 0.02}), kernels=(kernel(1.02e6, 1_000_000),))
    seen = Telemetered(gpu_utilisation=0.97)
    assert not [*look(case(looks(gpu(1)), gpu=True, busy=0.97, study=steady, seen=seen))]
    quiet = Telemetered(gpu_utilisation=0.52)
    assert not [*look(case(looks(gpu(1)), gpu=True, busy=0.5, seen=quiet))]


def test_silent_when_alone_on_the_gpu() -> None:
    seen = Telemetered(gpu_utilisation=0.99)
    assert not [*look(case(looks(gpu(0)), gpu=True, busy=0.5, seen=seen))]


def test_a_crowded_processor_is_told_by_the_verdict_and_is_no_finding() -> None:
    assert "gpu" in RULE.needs


@pytest.mark.parametrize(("others", "found"), [(1, True), (0, False)])
def test_a_run_beside_another_program_has_the_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int, found: bool
) -> None:
    """From the telemetry file that the watcher writes to the findings of the run. The traced
    steps keep the GPU busy for 67 % of their time, and the driver sees 95 %."""
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    watched = tuple(
        replace(sample, devices=(gpu(others),)) for sample in made_up_run_directory.telemetry()
    )
    run = made_up_run_directory.directory(
        tmp_path, run=made_up_run_directory.run_file(), captured=made_up_run_directory.capture(),
        stepped=made_up_run_directory.steps(), watched=watched,
    )  # fmt: skip
    made_up_run_directory.trace(run)
    _, concluded = concluded_case(run)
    assert concluded is not None
    rules = {finding.rule for finding in findings(concluded, Attempts()).findings}
    assert ("shared-device" in rules) is found

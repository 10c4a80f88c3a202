import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rules.shared_machine import SHARED_DEVICE as RULE
from ridgeline.diagnosis.rules.shared_machine import shared_device as look
from ridgeline.records.run import DeviceSample
from ridgeline.records.run_summary import Telemetered
from ridgeline.records.trace import KernelRow
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

"""Disturbances with their numbers, from readings that are made up."""

from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.machine import nvml
from ridgeline.machine.nvml import Address, Reading, Tenants
from ridgeline.machine.surroundings import (
    HostTimes,
    conditions,
    frequency_limits,
    host_disturbances,
    lowered_clocks,
    tenant_disturbances,
)
from ridgeline.records.facts import Reason, because
from ridgeline.records.machine import Disturbance
from ridgeline.report.reasons import explain

GIB = 1 << 30


def _reading(reasons: int, **facts: Any) -> Reading:
    usual = {"sm_mhz": 1980, "sm_max_mhz": 1980, "power_w": 690.0, "power_limit_w": 700.0}
    return Reading(reasons=reasons, **{**usual, "temperature_c": 60, **facts})


def test_free_clocks_are_not_mentioned() -> None:
    assert lowered_clocks([_reading(0), _reading(0x1), _reading(0x2)]) == ()
    assert lowered_clocks([]) == ()


def test_a_power_cap_is_told_from_heat() -> None:
    capped = [_reading(0), _reading(nvml.SW_POWER_CAP, sm_mhz=1410)]
    assert lowered_clocks(capped) == (
        because(
            Disturbance.POWER_CAP,
            looks=1,
            all_looks=2,
            sm_mhz=1410,
            sm_max_mhz=1980,
            power_w=690.0,
            power_limit_w=700.0,
        ),
    )
    hot = [_reading(nvml.HW_THERMAL | nvml.HW_SLOWDOWN, sm_mhz=1200, temperature_c=91)]
    assert lowered_clocks(hot) == (
        because(
            Disturbance.HOT, looks=1, all_looks=1, sm_mhz=1200, sm_max_mhz=1980, temperature_c=91
        ),
    )


def test_an_unexplained_slowdown_is_reported() -> None:
    (slowdown,) = lowered_clocks([_reading(nvml.HW_SLOWDOWN)])
    assert slowdown.code == Disturbance.SLOWDOWN


def _tenants(
    tenants: Tenants, *, has_context: bool = False, has_run: bool = False
) -> tuple[Reason, ...]:
    return tenant_disturbances(
        tenants, own_pid=7, own_bytes=0, has_context=has_context, has_run=has_run
    )


def test_an_empty_device_is_not_mentioned() -> None:
    assert _tenants(Tenants(used_bytes=GIB // 2)) == ()
    assert _tenants(Tenants(pids=(7,), used_bytes=GIB), has_context=True, has_run=True) == ()


def test_another_process_is_counted_with_its_memory() -> None:
    found = _tenants(Tenants(pids=(7, 8), used_bytes=41 * GIB, utilisation_percent=93))
    assert found == (
        because(Disturbance.GPU_SHARED, processes=1, held_bytes=40 * GIB),
        because(Disturbance.GPU_BUSY, share=0.93),
    )


def test_memory_without_a_listed_process_is_reported_in_a_container() -> None:
    (found,) = _tenants(Tenants(used_bytes=31 * GIB))
    assert found == because(Disturbance.GPU_SHARED, processes=0, held_bytes=30 * GIB)


def test_our_own_process_under_another_id_is_not_counted() -> None:
    assert _tenants(Tenants(pids=(31337,), used_bytes=GIB), has_context=True) == ()


def test_our_own_work_is_not_reported() -> None:
    after = Tenants(pids=(7,), utilisation_percent=99)
    assert _tenants(after, has_context=True, has_run=True) == ()
    assert _tenants(after) == (because(Disturbance.GPU_BUSY, share=0.99),)


def _times(at: float, busy: float, steal: float = 0.0, own: float = 0.0) -> HostTimes:
    return HostTimes(at_s=at, busy_s=busy, steal_s=steal, own_s=own)


def test_a_quiet_host_is_not_mentioned() -> None:
    assert host_disturbances(_times(0, 0), _times(1, 2, own=2), 2, 1.9, 2) == ()


def test_other_load_and_stolen_time_are_reported_with_numbers() -> None:
    found = host_disturbances(_times(0, 0), _times(1, 1.8, steal=0.1, own=0.5), 2, 5.25, 2)
    assert found == (
        because(Disturbance.OTHER_PROCESSES, used_cores=pytest.approx(1.3), cores=2),  # type: ignore[arg-type]
        because(Disturbance.LOAD, load=5.25, processors=2),
        because(Disturbance.STEAL, share=0.05),
    )


def test_governors_and_caps_are_reported_if_they_restrict_the_clock() -> None:
    assert frequency_limits("performance", "acpi-cpufreq", 3_500_000, 3_500_000) == ()
    assert frequency_limits("powersave", "intel_pstate", 3_500_000, 3_500_000) == ()
    assert frequency_limits("powersave", "acpi-cpufreq", 0, 0) == (because(Disturbance.POWERSAVE),)
    assert frequency_limits("", "", 2_000_000, 3_500_000) == (
        because(Disturbance.CPU_CLOCK_CAPPED, limit_ghz=2.0, max_ghz=3.5),
    )


def test_conditions_of_this_machine_have_codes_with_english() -> None:
    assert all(explain(one) for one in conditions("cpu"))


class FakeNvml:
    """Two cards; index order is not torch's."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, count: int = 2) -> None:
        self.count = count

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return {"GPU-bbb": "second"}[uuid]

    def nvmlDeviceGetHandleByPciBusId(self, pci: str) -> str:
        return {"00000000:1b:00.0": "first"}[pci]

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return "only"

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=3)]


@pytest.mark.parametrize(
    ("address", "count", "handle"),
    [
        (Address(uuid="bbb", name="NVIDIA H200"), 2, "second"),
        (Address(uuid="?", pci="00000000:1b:00.0"), 2, "first"),
        (Address(name="NVIDIA H200"), 1, "only"),
        (Address(name="NVIDIA L4"), 1, None),
        (Address(name="NVIDIA H200"), 2, None),
    ],
)
def test_a_torch_device_is_found_by_identity_and_never_by_index(
    address: Address, count: int, handle: str | None
) -> None:
    assert nvml.find(FakeNvml(count), address) == handle


def test_readings_that_nvml_refuses_are_left_empty() -> None:
    assert nvml.reading(FakeNvml(), "first") is None
    assert nvml.tenants(FakeNvml(), "first") == Tenants(pids=(3,))
    assert nvml.driver(FakeNvml()) == ""


def test_a_machine_without_nvml_gets_no_session_and_no_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pynvml

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    with nvml.session() as library:
        assert library is None

"""Conditions said in one sentence with numbers, from readings that are made up."""

from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.machine import nvml
from ridgeline.machine.nvml import Address, Reading, Tenants
from ridgeline.machine.surroundings import (
    HostTimes,
    conditions,
    frequency_sentences,
    host_sentences,
    tenant_sentences,
    throttle_sentences,
)

GIB = 1 << 30


def _reading(reasons: int, **facts: Any) -> Reading:
    usual = {"sm_mhz": 1980, "sm_max_mhz": 1980, "power_w": 690.0, "power_limit_w": 700.0}
    return Reading(reasons=reasons, **{**usual, "temperature_c": 60, **facts})


def test_free_clocks_are_not_mentioned() -> None:
    assert throttle_sentences([_reading(0), _reading(0x1), _reading(0x2)]) == ()
    assert throttle_sentences([]) == ()


def test_a_power_cap_is_told_from_heat() -> None:
    capped = [_reading(0), _reading(nvml.SW_POWER_CAP, sm_mhz=1410)]
    assert throttle_sentences(capped) == (
        "power cap in 1 of 2 looks while measuring: SM clock down to 1410 of 1980 MHz, "
        "690 W of a 700 W limit",
    )
    hot = [_reading(nvml.HW_THERMAL | nvml.HW_SLOWDOWN, sm_mhz=1200, temperature_c=91)]
    assert throttle_sentences(hot) == (
        "thermal throttling in 1 of 1 looks while measuring: SM clock down to 1200 of 1980 MHz, "
        "91 °C",
    )


def test_an_unexplained_slowdown_is_reported() -> None:
    (said,) = throttle_sentences([_reading(nvml.HW_SLOWDOWN)])
    assert said.startswith("hardware slowdown")


def _tenants(tenants: Tenants, *, has_context: bool = False, has_run: bool = False) -> str:
    return "; ".join(
        tenant_sentences(tenants, own_pid=7, own_bytes=0, has_context=has_context, has_run=has_run)
    )


def test_an_empty_device_is_not_mentioned() -> None:
    assert _tenants(Tenants(used_bytes=GIB // 2)) == ""
    assert _tenants(Tenants(pids=(7,), used_bytes=GIB), has_context=True, has_run=True) == ""


def test_another_process_is_counted_with_its_memory() -> None:
    said = _tenants(Tenants(pids=(7, 8), used_bytes=41 * GIB, utilisation_percent=93))
    assert said.startswith("1 other process on the device, 40.0 GiB")
    assert "93 % busy" in said


def test_memory_without_a_listed_process_is_reported_in_a_container() -> None:
    assert "unlisted other processes" in _tenants(Tenants(used_bytes=31 * GIB))


def test_our_own_process_under_another_id_is_not_counted() -> None:
    assert _tenants(Tenants(pids=(31337,), used_bytes=GIB), has_context=True) == ""


def test_our_own_work_is_not_reported() -> None:
    after = Tenants(pids=(7,), utilisation_percent=99)
    assert _tenants(after, has_context=True, has_run=True) == ""
    assert "99 % busy" in _tenants(after)


def _times(at: float, busy: float, steal: float = 0.0, own: float = 0.0) -> HostTimes:
    return HostTimes(at_s=at, busy_s=busy, steal_s=steal, own_s=own)


def test_a_quiet_host_is_not_mentioned() -> None:
    assert host_sentences(_times(0, 0), _times(1, 2, own=2), 2, 1.9, 2) == ()


def test_other_load_and_stolen_time_are_reported_with_numbers() -> None:
    said = host_sentences(_times(0, 0), _times(1, 1.8, steal=0.1, own=0.5), 2, 5.25, 2)
    assert said == (
        "other processes use 1.3 of 2 cores",
        "the 1-minute load is 5.2 on 2 processors",
        "the hypervisor takes 5 % of the CPU time (steal)",
    )


def test_governors_and_caps_are_reported_if_they_restrict_the_clock() -> None:
    assert frequency_sentences("performance", "acpi-cpufreq", 3_500_000, 3_500_000) == ()
    assert frequency_sentences("powersave", "intel_pstate", 3_500_000, 3_500_000) == ()
    assert "powersave" in frequency_sentences("powersave", "acpi-cpufreq", 0, 0)[0]
    assert "2.00 of 3.50 GHz" in frequency_sentences("", "", 2_000_000, 3_500_000)[0]


def test_conditions_of_this_machine_are_sentences() -> None:
    assert all(isinstance(said, str) and said for said in conditions("cpu"))


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

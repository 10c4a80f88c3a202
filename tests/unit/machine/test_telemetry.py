"""One look at the machine: what a sampler imports, costs in lines, and says of host and GPUs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.machine import nvml, telemetry
from ridgeline.machine.telemetry import (
    Devices,
    PackageEnergy,
    Sampler,
    busy_percent,
    visible_devices,
)
from ridgeline.records.run import ProcessSample

SECOND = 1_000_000_000
UUIDS = [(0, "GPU-aa11"), (1, "GPU-bb22"), (1, "MIG-part"), (2, "GPU-bc33")]


def test_the_sampler_needs_neither_torch_nor_numpy_nor_rich() -> None:
    code = """
import json, sys
import ridgeline.machine.telemetry, ridgeline.harness.capture.watching
print(json.dumps([m for m in ("torch", "numpy", "rich", "psutil") if m in sys.modules]))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(said.stdout) == []


def test_a_sample_of_this_process_is_filled_in() -> None:
    sampler = Sampler(os.getpid())
    try:
        sample = sampler.sample(time.monotonic_ns())
    finally:
        sampler.close()
    assert sample.processes[0].pid == os.getpid()
    assert sample.processes[0].rss_bytes > 1 << 20
    assert sample.host_memory_available_bytes


def test_a_program_that_is_gone_gives_an_empty_sample() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    sampler = Sampler(gone.pid)
    assert sampler.sample(5).processes == ()
    sampler.close()


def test_many_workers_are_read_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Crowd:
        def pids(self) -> list[int]:
            return list(range(7, 7 + telemetry.MAX_PROCESSES_PER_SAMPLE + 1))

        def sample(self, pids: list[int], *, shared: bool = False) -> tuple[ProcessSample, ...]:
            return tuple(ProcessSample(pid=pid, pss_bytes=int(shared)) for pid in pids)

    sampler = Sampler(7)
    monkeypatch.setattr(sampler, "_tree", Crowd())
    counts = [len(sampler.sample(tenth * SECOND // 10).processes) for tenth in range(12)]
    sampler.close()
    assert counts == [
        telemetry.MAX_PROCESSES_PER_SAMPLE + 1,
        *[1] * 9,
        telemetry.MAX_PROCESSES_PER_SAMPLE + 1,
        1,
    ]


def test_shared_memory_is_divided_when_processes_come_and_then_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Growing:
        def __init__(self) -> None:
            self.count = 1

        def pids(self) -> list[int]:
            return list(range(7, 7 + self.count))

        def sample(self, pids: list[int], *, shared: bool = False) -> tuple[ProcessSample, ...]:
            return tuple(ProcessSample(pid=pid, pss_bytes=int(shared)) for pid in pids)

    sampler, tree = Sampler(7), Growing()
    monkeypatch.setattr(sampler, "_tree", tree)

    def divided(at_s: float) -> bool:
        return any(p.pss_bytes for p in sampler.sample(int(at_s * SECOND)).processes)

    assert not divided(10.0)  # a program of one process shares with none of its own
    tree.count = 3
    assert [divided(at) for at in (11.0, 11.1, 12.0, 15.9, 16.0)] == [
        True, False, False, False, True,
    ]  # fmt: skip
    tree.count = 5
    assert [divided(at) for at in (16.2, 16.5, 16.6)] == [False, True, False]
    sampler.close()


def test_the_hosts_load_counts_waiting_for_storage_as_idle(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 50 800 50 0 0 0 9 9\ncpu0 1 2 3\n")
    assert telemetry._host_times(str(tmp_path)) == (850, 1000)
    assert busy_percent((850, 1000), (900, 1200)) == 75.0
    assert busy_percent((850, 1000), (850, 1000)) is None


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 0 , 1 ", [0, 1]),
        ("0,7,1", [0]),  # as CUDA: what names nothing ends the list
        ("GPU-bb22", [1]),
        ("GPU-b", [1]),
        ("MIG-part,GPU-aa", [1, 0]),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    visible: str | None, indices: list[int]
) -> None:
    assert visible_devices(visible, UUIDS) == indices


def test_throttle_reasons_are_given_in_words() -> None:
    assert nvml.reason_words(0) == nvml.reason_words(0x1) == ()
    assert nvml.reason_words(nvml.SW_POWER_CAP) == ("power cap",)
    assert nvml.reason_words(nvml.HW_THERMAL | nvml.HW_SLOWDOWN) == ("thermal",)
    assert nvml.reason_words(nvml.HW_SLOWDOWN) == ("hardware slowdown",)


class MadeUpLibrary:
    """pynvml with two GPUs; `tenants` lists the processes on each."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, tenants: dict[int, list[int]]) -> None:
        self.tenants = tenants

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return f"GPU-{handle}".encode()

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.tenants[handle]]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return 2_500

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        raise RuntimeError("not supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return nvml.SW_POWER_CAP


def test_a_gpu_with_the_programs_process_is_taken_and_kept() -> None:
    library = MadeUpLibrary({0: [5], 1: []})
    devices = Devices(library, None)
    assert [(d.index, d.ours) for d in devices.sample(0, [70, 71])] == [(0, False), (1, False)]
    library.tenants[1] = [71, 99]
    assert len(devices.sample(SECOND // 2, [70, 71])) == 2, "asked once a second"
    (found,) = devices.sample(SECOND, [70, 71])
    assert (found.index, found.ours, found.others) == (1, True, 1)
    library.tenants[1] = [99]
    (found,) = devices.sample(2 * SECOND, [70])
    assert (found.index, found.others) == (1, 1)


def test_with_ids_of_another_namespace_the_program_is_not_counted_as_another() -> None:
    (device,) = Devices(MadeUpLibrary({0: [40_001], 1: []}), "0").sample(0, [7])
    assert (device.others, device.ours) == (0, False)
    (device,) = Devices(MadeUpLibrary({0: [40_001, 40_002], 1: []}), "0").sample(0, [7])
    assert device.others == 1


def test_readings_that_the_driver_lacks_are_none() -> None:
    (device,) = Devices(MadeUpLibrary({0: [], 1: []}), "GPU-1").sample(0, [7])
    assert (device.index, device.energy_j, device.power_w) == (1, 2.5, None)
    assert device.utilisation_percent is device.sm_mhz is device.temperature_c is None
    assert device.throttle == ("power cap",)


def test_without_nvml_there_are_no_devices() -> None:
    assert Devices(None, "0").sample(0, [7]) == ()


def _zone(root: Path, folder: str, name: str, energy: int | None) -> Path:
    zone = root / folder
    zone.mkdir()
    (zone / "name").write_text(f"{name}\n")
    (zone / "max_energy_range_uj").write_text("1000000000\n")
    if energy is not None:
        (zone / "energy_uj").write_text(f"{energy}\n")
    return zone


def test_package_energy_is_added_without_its_subzones(tmp_path: Path) -> None:
    first = _zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = _zone(tmp_path, "intel-rapl:1", "package-1", 2_000_000)
    _zone(tmp_path, "intel-rapl:0:0", "core", 9)
    _zone(tmp_path, "intel-rapl:2", "psys", 9)
    _zone(tmp_path, "intel-rapl-mmio:0", "package-0", 9)
    energy = PackageEnergy(tmp_path)
    before = energy.joules()
    assert before is not None
    (first / "energy_uj").write_text("4000000")
    (second / "energy_uj").write_text("2500000")
    assert energy.joules() == pytest.approx(before + 3.5)


def test_a_counter_that_starts_again_goes_on_growing(tmp_path: Path) -> None:
    zone = _zone(tmp_path, "intel-rapl:0", "package-0", 999_000_000)
    energy = PackageEnergy(tmp_path)
    before = energy.joules()
    assert before is not None
    (zone / "energy_uj").write_text("1000000")
    assert energy.joules() == pytest.approx(before + 2.0)


def test_a_counter_that_may_not_be_read_is_none(tmp_path: Path) -> None:
    _zone(tmp_path, "intel-rapl:0", "package-0", 5)
    _zone(tmp_path, "intel-rapl:1", "package-1", None)
    assert PackageEnergy(tmp_path).joules() is None
    assert PackageEnergy(tmp_path / "nowhere").joules() is None

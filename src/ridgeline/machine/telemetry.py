"""The GPUs a program works on, as NVML shows them from outside.

Whose a GPU is: those on which one of the program's processes has work; until one is seen, those
CUDA_VISIBLE_DEVICES names; else all. In a container NVML may give ids of another namespace, so that
none ever matches, and its list of processes then cannot tell the program from others.
"""

import os
import re
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from ridgeline.machine import nvml, processes
from ridgeline.machine.nvml import ask
from ridgeline.machine.processes import PortableTree
from ridgeline.records.run import DeviceSample, ProcessSample, Telemetry

_SECOND_NS = 1_000_000_000


class _Standing(Struct, frozen=True):
    """What changes slowly, or costs more to ask: once a second."""

    power_limit_w: float | None = None
    strangers: int = 0
    ours: bool = False


class Devices:
    """Looks at them again and again. `library` is pynvml, started; None where it cannot be."""

    def __init__(self, library: Any | None, visible: str | None) -> None:
        self._library = library
        count = (ask(library, "nvmlDeviceGetCount") if library is not None else 0) or 0
        found = {i: ask(library, "nvmlDeviceGetHandleByIndex", i) for i in range(int(count))}
        self._handles = {i: handle for i, handle in found.items() if handle is not None}
        self._named = visible_devices(visible, _uuids(library, self._handles))
        self._ours: set[int] = set()
        self._standing: dict[int, _Standing] = {}
        self._asked_ns: int | None = None
        self._sm_max = {
            i: ask(library, "nvmlDeviceGetMaxClockInfo", handle, library.NVML_CLOCK_SM)
            for i, handle in self._handles.items()
            if library is not None
        }

    def sample(self, at_ns: int, pids: Collection[int]) -> tuple[DeviceSample, ...]:
        if self._library is None:
            return ()
        if self._asked_ns is None or at_ns - self._asked_ns >= _SECOND_NS:
            self._asked_ns = at_ns
            self._ask_standing(pids)
        # Once seen at work it stays: at its end a program has left its GPU before it is gone.
        chosen = sorted(self._ours) or self._named
        return tuple(self._read(index) for index in chosen)

    def _ask_standing(self, pids: Collection[int]) -> None:
        for index, handle in self._handles.items():
            listed = set(nvml.process_ids(self._library, handle))
            if listed & set(pids):
                self._ours.add(index)
            limit = ask(self._library, "nvmlDeviceGetEnforcedPowerLimit", handle)
            self._standing[index] = _Standing(
                power_limit_w=_scaled(limit, 1000),
                strangers=len(listed - set(pids)),
                ours=index in self._ours,
            )

    def _read(self, index: int) -> DeviceSample:
        library, handle = self._library, self._handles[index]
        assert library is not None
        standing = self._standing.get(index, _Standing())
        rates = ask(library, "nvmlDeviceGetUtilizationRates", handle)
        memory = ask(library, "nvmlDeviceGetMemoryInfo", handle)
        temperature = ask(library, "nvmlDeviceGetTemperature", handle, library.NVML_TEMPERATURE_GPU)
        return DeviceSample(
            index=index,
            utilisation_percent=int(rates.gpu) if rates is not None else None,
            memory_used_bytes=int(memory.used) if memory is not None else None,
            sm_mhz=ask(library, "nvmlDeviceGetClockInfo", handle, library.NVML_CLOCK_SM),
            sm_max_mhz=self._sm_max.get(index),
            memory_mhz=ask(library, "nvmlDeviceGetClockInfo", handle, library.NVML_CLOCK_MEM),
            power_w=_scaled(ask(library, "nvmlDeviceGetPowerUsage", handle), 1000),
            power_limit_w=standing.power_limit_w,
            temperature_c=temperature,
            energy_j=_scaled(ask(library, "nvmlDeviceGetTotalEnergyConsumption", handle), 1000),
            throttle=nvml.reason_words(nvml.reasons(library, handle) or 0),
            # Where no id of ours was ever listed, one of the strangers may be the program itself.
            others=standing.strangers if standing.ours else max(standing.strangers - 1, 0),
            ours=standing.ours,
        )


def visible_devices(visible: str | None, uuids: Sequence[tuple[int, str]]) -> list[int]:
    """NVML's indices of what CUDA_VISIBLE_DEVICES names; all where it is not set.

    As CUDA reads it: the first entry that names nothing ends the list, and a UUID may be cut short.
    Indices are taken in the order of the bus, which is CUDA's too where the GPUs are of one kind.
    `uuids` may hold several for an index: a divided GPU (MIG) and its parts."""
    everyone = sorted({index for index, _ in uuids})
    if visible is None:
        return everyone
    found: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdigit():
            match = [int(entry)] if int(entry) in everyone else []
        else:
            match = [index for index, uuid in uuids if entry and uuid.startswith(entry)]
        if not match:
            break
        if match[0] not in found:
            found.append(match[0])
    return found


def _uuids(library: Any, handles: dict[int, Any]) -> list[tuple[int, str]]:
    found = []
    for index, handle in handles.items():
        found.append((index, nvml.string(ask(library, "nvmlDeviceGetUUID", handle))))
        # A part of a GPU has no power or clock of its own: its GPU stands for it.
        for part in range(int(ask(library, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0)):
            piece = ask(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, part)
            if piece is not None:
                found.append((index, nvml.string(ask(library, "nvmlDeviceGetUUID", piece))))
    return found


def _scaled(value: Any | None, divisor: int) -> float | None:
    return None if value is None else round(float(value) / divisor, 3)


_ZONES = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")  # AMD's too: the driver kept the name


class PackageEnergy:
    """Over all packages, as they count themselves: two who read it get the same, until it wraps."""

    def __init__(self, zones: Path = _ZONES) -> None:
        self._packages = [zone for zone in _folders(zones) if _is_package(zone)]
        self._last = {zone: _number(zone / "energy_uj") for zone in self._packages}
        # One of two sockets would pass for the whole.
        self._readable = bool(self._packages) and None not in self._last.values()
        self._micro_joules = sum(value or 0 for value in self._last.values())

    def joules(self) -> float | None:
        if not self._readable:
            return None
        for zone in self._packages:
            now, before = _number(zone / "energy_uj"), self._last[zone]
            if now is None or before is None:
                self._readable = False
                return None
            # The counter starts again after some minutes of full load: 262 kJ on many packages.
            span = _number(zone / "max_energy_range_uj") or 0 if now < before else 0
            self._micro_joules += max(now - before + span, 0)
            self._last[zone] = now
        return self._micro_joules / 1e6


def _folders(zones: Path) -> list[Path]:
    try:
        return sorted(zones.iterdir())
    except OSError:
        return []


def _is_package(zone: Path) -> bool:
    try:
        return bool(_PACKAGE.fullmatch(zone.name)) and (
            (zone / "name").read_text().startswith("package")
        )
    except OSError:
        return False


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


# 11 processes cost 0.3 ms a look and up to 2 kB a line; a program with 64 workers would fill its
# file within minutes, so beyond this many the workers are read once a second.
MANY = 16


class Sampler:
    """Looks at one program, found by its id. Close it when done."""

    def __init__(self, pid: int, *, visible: str | None = None, proc: str = processes.PROC) -> None:
        """`visible`: CUDA_VISIBLE_DEVICES, taken from the environment where not given."""
        self._pid = pid
        self._proc = proc
        self._tree = (
            processes.Tree(pid, proc=proc) if processes.supported(proc) else PortableTree(pid)
        )
        self._open = ExitStack()
        library = self._open.enter_context(nvml.session())
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        self._devices = Devices(library, chosen)
        self._package = PackageEnergy()
        self._host_ns = -_SECOND_NS
        self._workers_ns = -_SECOND_NS
        self._times = _host_times(proc)
        self._host_percent: float | None = None
        self._available: int | None = None

    def sample(self, at_ns: int) -> Telemetry:
        pids = self._tree.pids()
        self._look_at_host(at_ns)
        return Telemetry(
            at_ns=at_ns,
            processes=self._processes(at_ns, pids),
            devices=self._devices.sample(at_ns, pids),
            host_cpu_percent=self._host_percent,
            host_memory_available_bytes=self._available,
            package_energy_j=self._package.joules(),
        )

    def close(self) -> None:
        self._open.close()

    def _processes(self, at_ns: int, pids: list[int]) -> tuple[ProcessSample, ...]:
        if len(pids) > MANY and at_ns - self._workers_ns < _SECOND_NS:
            return self._tree.sample([pid for pid in pids if pid == self._pid])
        self._workers_ns = at_ns
        return self._tree.sample(pids)

    def _look_at_host(self, at_ns: int) -> None:
        """Once a second: /proc/stat lists every processor and interrupt of the machine."""
        if at_ns - self._host_ns < _SECOND_NS:
            return
        self._host_ns = at_ns
        before, self._times = self._times, _host_times(self._proc)
        self._host_percent = busy_percent(before, self._times)
        self._available = _available_bytes(self._proc)


def busy_percent(before: tuple[int, int], after: tuple[int, int]) -> float | None:
    """Of all processors' time between two readings of (idle, all) ticks."""
    idle, whole = after[0] - before[0], after[1] - before[1]
    if whole < 10:  # ticks of 10 ms: too short a time to tell
        return None
    return round(min(max(100 * (1 - idle / whole), 0.0), 100.0), 1)


def busy_percent_now(seconds: float = 0.3, proc: str = processes.PROC) -> float | None:
    """Return the percentage of all processors' time in use over the next `seconds`; None if the
    system does not tell."""
    before = _host_times(proc)
    time.sleep(seconds)
    return busy_percent(before, _host_times(proc))


def _host_times(proc: str) -> tuple[int, int]:
    """(idle, all) in ticks. Waiting for storage is idle; a guest's time is within user's."""
    fields = _text(proc, "stat").partition("\n")[0].split()[1:9]
    times = [int(field) for field in fields if field.isdigit()]
    return (times[3] + times[4], sum(times)) if len(times) >= 5 else (0, 0)


def _available_bytes(proc: str) -> int | None:
    for line in _text(proc, "meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _text(proc: str, name: str) -> str:
    try:
        return Path(proc, name).read_text()
    except OSError:
        return ""

"""One look at the machine while a program runs on it: its processes, its GPUs, the host.

For a process of its own, beside the program: nothing here imports torch. What the system does not
say is left out of the record.
"""

import os
import time
from contextlib import ExitStack
from pathlib import Path

from ridgeline.machine import nvml, processes
from ridgeline.machine.device_telemetry import Devices
from ridgeline.machine.package_energy import PackageEnergy
from ridgeline.machine.portable import PortableTree
from ridgeline.records.run import ProcessSample, Telemetry

_SECOND = 1_000_000_000
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
        self._host_ns = -_SECOND
        self._workers_ns = -_SECOND
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
        if len(pids) > MANY and at_ns - self._workers_ns < _SECOND:
            return self._tree.sample([pid for pid in pids if pid == self._pid])
        self._workers_ns = at_ns
        return self._tree.sample(pids)

    def _look_at_host(self, at_ns: int) -> None:
        """Once a second: /proc/stat lists every processor and interrupt of the machine."""
        if at_ns - self._host_ns < _SECOND:
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

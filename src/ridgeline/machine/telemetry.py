"""Telemetry of a running program, read from outside: its processes, its GPUs, the host.

/proc is read directly. psutil opens more files and builds more objects for the same counters, and
this happens ten times a second beside a program that is being measured. Only systems without /proc
use psutil (`PortableProcessTree`).

A GPU belongs to the program if one of the program's processes has work on it. Until such a GPU is
seen, those that CUDA_VISIBLE_DEVICES names are sampled, or all if it is not set. In a container
NVML may list the process ids of another namespace. Then no id ever matches, and the program cannot
be told from other users of the GPU.
"""

import os
import re
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from ridgeline.machine import nvml
from ridgeline.machine.nvml import ask
from ridgeline.machine.processor import system_number, system_text
from ridgeline.records.run import DeviceSample, ProcessSample, Telemetry

_SECOND_NS = 1_000_000_000
PROC = "/proc"
LOADER_THREAD = "pt_data_worker"
"""The name that torch gives the main thread of a DataLoader's worker."""
PSS_INTERVAL_NS = 5 * _SECOND_NS
MAX_PSS_RESIDENT_BYTES = 4 * 2**30
"""Shared memory is not divided for larger processes: a visit to a million pages takes 10 to 20 ms,
and the process's own requests for memory may wait for it."""


class ProcessStat(Struct, frozen=True):
    """The fields of /proc/<pid>/stat that are used here."""

    name: str
    """The name of the main thread, which torch sets in workers of its DataLoader."""
    state: str
    parent: int
    major_faults: int
    ticks: int
    """User and system time, in clock ticks."""
    threads: int
    started: int
    """Clock ticks from the start of the machine to the start of the process. Ids are used again; id
    and start time together identify a process."""
    exit_status: int = 0
    """The status as wait() returns it; also 0 if this process may not read it."""


class ProcessTree:
    """A process and its descendants, brought up to date at each call of `pids`.

    Only new ids are opened, and nothing is listed while no process was started on the machine. A
    descendant stays in the tree when its parent dies. A process that vanishes between listing and
    reading is skipped."""

    def __init__(self, pid: int, *, proc: str = PROC) -> None:
        self._proc = proc
        self._pid = pid
        # The watcher was started by the program. Where the program is process 1 of a container, the
        # watcher counts as its child, and must not be sampled as a worker.
        self._watcher_pid = os.getpid() if os.getpid() != pid else 0
        self._started: dict[int, int] = {}
        """Process ids of the tree, each with its start time in clock ticks."""
        self._known: set[int] = set()
        self._newest_pid = -1
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def pids(self) -> list[int]:
        """Return the ids of the program and its descendants, the program first."""
        self._update()
        return list(self._started)

    def sample(
        self, pids: Iterable[int] | None = None, *, shared: bool = False
    ) -> tuple[ProcessSample, ...]:
        """Return a sample of each process of the tree, or of those in `pids`; with `shared`, also
        each one's part of the memory that processes share."""
        samples = (self._read(pid, shared) for pid in (self.pids() if pids is None else list(pids)))
        return tuple(sample for sample in samples if sample is not None)

    def _update(self) -> None:
        newest = _newest_pid(self._proc)
        if newest == self._newest_pid and newest >= 0:
            return
        self._newest_pid = newest
        present = {int(name) for name in _listed(self._proc) if name.isdigit()}
        self._known &= present
        for gone in self._started.keys() - present:
            del self._started[gone]
        # A child usually has a higher id than its parent, but ids start again from the bottom after
        # the largest one. So processes without a parent in the tree are tried again after the rest.
        orphans = self._adopt(sorted(present - self._known))
        while orphans and len(remaining := self._adopt(orphans)) < len(orphans):
            orphans = remaining
        self._known |= present

    def _adopt(self, pids: Iterable[int]) -> list[int]:
        """Add those of `pids` whose parent is in the tree; return the others."""
        others = []
        for pid in pids:
            if pid == self._watcher_pid:
                continue
            stat = process_stat(pid, self._proc)
            if stat is None:
                continue
            if pid == self._pid or stat.parent in self._started:
                self._started[pid] = stat.started
            else:
                others.append(pid)
        return others

    def _read(self, pid: int, shared: bool) -> ProcessSample | None:
        stat = process_stat(pid, self._proc)
        # Zombies (Z, X) do no work. A different start time means that the id was used again.
        if stat is None or stat.state in "ZX" or self._started.get(pid) != stat.started:
            self._started.pop(pid, None)
            self._known.discard(pid)
            return None
        resident = _read(f"{self._proc}/{pid}/statm").split()
        resident_bytes = int(resident[1]) * self._page_bytes if len(resident) > 1 else 0
        storage = _fields(_read(f"{self._proc}/{pid}/io"))
        return ProcessSample(
            pid=pid,
            worker=pid != self._pid,
            loader=pid != self._pid and stat.name.startswith(LOADER_THREAD),
            cpu_s=round(stat.ticks / self._ticks_per_second, 3),
            rss_bytes=resident_bytes,
            pss_bytes=self._shared(pid, resident_bytes) if shared else 0,
            read_bytes=storage.get(b"read_bytes", 0),
            write_bytes=storage.get(b"write_bytes", 0),
            major_faults=stat.major_faults,
            threads=stat.threads,
        )

    def _shared(self, pid: int, resident_bytes: int) -> int:
        """Return the process's resident bytes with each shared page divided by its users; 0 if
        that is not known. The kernel visits every page for it."""
        if resident_bytes > MAX_PSS_RESIDENT_BYTES:
            return 0
        for line in _read(f"{self._proc}/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
        return 0


def process_stat(pid: int, proc: str = PROC) -> ProcessStat | None:
    """Return the fields of /proc/<pid>/stat; None if there is no such process."""
    # The program's name stands in brackets and may itself hold spaces and brackets.
    head, _, rest = _read(f"{proc}/{pid}/stat").rpartition(b")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return ProcessStat(
        name=head.partition(b"(")[2].decode(errors="replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        major_faults=int(fields[9]),
        ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        started=int(fields[19]),
        exit_status=int(fields[49]) if len(fields) > 49 else 0,
    )


def has_proc(proc: str = PROC) -> bool:
    """Return whether this system has /proc."""
    return Path(proc, "self", "stat").exists()


def _newest_pid(proc: str) -> int:
    """Return the process id given out last, -1 if the system does not report it. While this number
    stays the same, no process was started."""
    last = _read(f"{proc}/loadavg").split()[-1:]
    return int(last[0]) if last and last[0].isdigit() else -1


def _listed(proc: str) -> list[str]:
    try:
        return os.listdir(proc)
    except OSError:
        return []


def _fields(text: bytes) -> dict[bytes, int]:
    pairs = (line.split(b": ") for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read(path: str) -> bytes:
    # os.open costs half of open(), and a sample reads dozens of files, none longer than 4 KB.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, 4096)
    except OSError:
        return b""
    finally:
        os.close(file)


class PortableProcessTree:
    """The same as `ProcessTree` by psutil, without storage and page faults, which psutil reports on
    some systems only."""

    def __init__(self, pid: int) -> None:
        import psutil

        self._pid = pid
        self._error: type[Exception] = psutil.Error
        self._process = psutil.Process
        self._members: dict[int, Any] = {}

    def pids(self) -> list[int]:
        try:
            program = self._members.get(self._pid) or self._process(self._pid)
            processes = [program, *program.children(recursive=True)]
        except self._error:
            return []
        own = self._process().pid
        self._members = {process.pid: process for process in processes if process.pid != own}
        return list(self._members)

    def sample(
        self, pids: Iterable[int] | None = None, *, shared: bool = False
    ) -> tuple[ProcessSample, ...]:
        samples = (self._read(pid) for pid in (self.pids() if pids is None else list(pids)))
        return tuple(sample for sample in samples if sample is not None)

    def _read(self, pid: int) -> ProcessSample | None:
        try:
            process = self._members[pid]
            with process.oneshot():
                times = process.cpu_times()
                return ProcessSample(
                    pid=pid,
                    worker=pid != self._pid,
                    cpu_s=round(times.user + times.system, 3),
                    rss_bytes=process.memory_info().rss,
                    threads=process.num_threads(),
                )
        except (self._error, KeyError):
            return None


class _SlowReadings(Struct, frozen=True):
    """Readings taken once a second, because they change slowly or cost more."""

    power_limit_w: float | None = None
    other_processes: int = 0
    ours: bool = False
    """Whether a process of the program has been seen on this GPU."""


class Devices:
    """The GPUs of a program, sampled again and again. `library` is pynvml after nvmlInit, or None
    if there is no NVML."""

    def __init__(self, library: Any | None, visible: str | None) -> None:
        self._library = library
        count = (ask(library, "nvmlDeviceGetCount") if library is not None else 0) or 0
        handles = {i: ask(library, "nvmlDeviceGetHandleByIndex", i) for i in range(int(count))}
        self._handles = {i: handle for i, handle in handles.items() if handle is not None}
        self._visible = visible_devices(visible, _uuids(library, self._handles))
        self._ours: set[int] = set()
        self._slow: dict[int, _SlowReadings] = {}
        self._slow_read_at_ns: int | None = None
        self._sm_max = {
            i: ask(library, "nvmlDeviceGetMaxClockInfo", handle, library.NVML_CLOCK_SM)
            for i, handle in self._handles.items()
            if library is not None
        }

    def sample(self, at_ns: int, pids: Collection[int]) -> tuple[DeviceSample, ...]:
        if self._library is None:
            return ()
        if self._slow_read_at_ns is None or at_ns - self._slow_read_at_ns >= _SECOND_NS:
            self._slow_read_at_ns = at_ns
            self._read_slow(pids)
        # A GPU once seen at work is sampled to the end: a program leaves its GPU before it exits.
        chosen = sorted(self._ours) or self._visible
        return tuple(self._read(index) for index in chosen)

    def _read_slow(self, pids: Collection[int]) -> None:
        for index, handle in self._handles.items():
            listed = set(nvml.process_ids(self._library, handle))
            if listed & set(pids):
                self._ours.add(index)
            limit = ask(self._library, "nvmlDeviceGetEnforcedPowerLimit", handle)
            self._slow[index] = _SlowReadings(
                power_limit_w=_scaled(limit, 1000),
                other_processes=len(listed - set(pids)),
                ours=index in self._ours,
            )

    def _read(self, index: int) -> DeviceSample:
        library, handle = self._library, self._handles[index]
        assert library is not None
        slow = self._slow.get(index, _SlowReadings())
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
            power_limit_w=slow.power_limit_w,
            temperature_c=temperature,
            energy_j=_scaled(ask(library, "nvmlDeviceGetTotalEnergyConsumption", handle), 1000),
            throttle=nvml.reason_words(nvml.reasons(library, handle) or 0),
            # While no process of the program was seen here, one of the others may be the program,
            # under an id of another namespace.
            others=slow.other_processes if slow.ours else max(slow.other_processes - 1, 0),
            ours=slow.ours,
        )


def visible_devices(visible: str | None, uuids: Sequence[tuple[int, str]]) -> list[int]:
    """Return NVML's indices of the GPUs that CUDA_VISIBLE_DEVICES names; of all if it is not set.

    The value is read as CUDA reads it: the first entry that names no GPU ends the list, and a UUID
    may be shortened. Indices follow the order of the PCI bus, which is CUDA's order too if all GPUs
    are of one kind. `uuids` may have several entries for an index: a divided GPU (MIG) and its
    parts.
    """
    indices = sorted({index for index, _ in uuids})
    if visible is None:
        return indices
    chosen: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdigit():
            match = [int(entry)] if int(entry) in indices else []
        else:
            match = [index for index, uuid in uuids if entry and uuid.startswith(entry)]
        if not match:
            break
        if match[0] not in chosen:
            chosen.append(match[0])
    return chosen


def _uuids(library: Any, handles: dict[int, Any]) -> list[tuple[int, str]]:
    uuids = []
    for index, handle in handles.items():
        uuids.append((index, nvml.string(ask(library, "nvmlDeviceGetUUID", handle))))
        # A MIG part has no power reading or clock of its own: the whole GPU is sampled for it.
        for part in range(int(ask(library, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0)):
            piece = ask(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, part)
            if piece is not None:
                uuids.append((index, nvml.string(ask(library, "nvmlDeviceGetUUID", piece))))
    return uuids


def _scaled(value: Any | None, divisor: int) -> float | None:
    return None if value is None else round(float(value) / divisor, 3)


_ZONES = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")  # AMD's too: the driver kept the name


class PackageEnergy:
    """The energy that all CPU packages have used, from the counters of the hardware (RAPL)."""

    def __init__(self, zones: Path = _ZONES) -> None:
        self._packages = [zone for zone in _folders(zones) if _is_package(zone)]
        self._last = {zone: system_number(zone / "energy_uj") for zone in self._packages}
        # If only one of two sockets can be read, its energy would be taken for that of both.
        self._readable = bool(self._packages) and None not in self._last.values()
        self._micro_joules = sum(value or 0 for value in self._last.values())

    def joules(self) -> float | None:
        """Return the joules counted so far; None if a package cannot be read."""
        if not self._readable:
            return None
        for zone in self._packages:
            now, before = system_number(zone / "energy_uj"), self._last[zone]
            if now is None or before is None:
                self._readable = False
                return None
            # The counter wraps after some minutes of full load, on many packages at 262 kJ.
            span = system_number(zone / "max_energy_range_uj") or 0 if now < before else 0
            self._micro_joules += max(now - before + span, 0)
            self._last[zone] = now
        return self._micro_joules / 1e6


def _folders(zones: Path) -> list[Path]:
    try:
        return sorted(zones.iterdir())
    except OSError:
        return []


def _is_package(zone: Path) -> bool:
    named = _PACKAGE.fullmatch(zone.name) is not None
    return named and system_text(zone / "name").startswith("package")


MAX_PROCESSES_PER_SAMPLE = 16
"""With more processes, the workers are sampled once a second only. A sample of 11 processes costs
0.3 ms and up to 2 kB: a program with 64 workers would fill its file within minutes."""


class Sampler:
    """Samples the telemetry of the program with a process id. Close it at the end."""

    def __init__(self, pid: int, *, visible: str | None = None, proc: str = PROC) -> None:
        """`visible` is the value of CUDA_VISIBLE_DEVICES, by default that of the environment."""
        self._pid = pid
        self._proc = proc
        self._tree = ProcessTree(pid, proc=proc) if has_proc(proc) else PortableProcessTree(pid)
        self._open = ExitStack()
        library = self._open.enter_context(nvml.session())
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        self._devices = Devices(library, chosen)
        self._package = PackageEnergy()
        self._host_ns = -_SECOND_NS
        self._workers_ns = -_SECOND_NS
        self._pss_ns = self._pss_pids = 0
        self._times = _host_times(proc)
        self._host_percent: float | None = None
        self._available: int | None = None

    def sample(self, at_ns: int) -> Telemetry:
        pids = self._tree.pids()
        self._sample_host(at_ns)
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
        if len(pids) > MAX_PROCESSES_PER_SAMPLE and at_ns - self._workers_ns < _SECOND_NS:
            return self._tree.sample([pid for pid in pids if pid == self._pid])
        self._workers_ns = at_ns
        since_ns, more = at_ns - self._pss_ns, len(pids) > self._pss_pids
        shared = len(pids) > 1 and since_ns >= (_SECOND_NS // 2 if more else PSS_INTERVAL_NS)
        if shared:
            self._pss_ns, self._pss_pids = at_ns, len(pids)
        return self._tree.sample(pids, shared=True) if shared else self._tree.sample(pids)

    def _sample_host(self, at_ns: int) -> None:
        """Sample the host, once a second at most: /proc/stat is long, because it lists every
        processor and interrupt of the machine."""
        if at_ns - self._host_ns < _SECOND_NS:
            return
        self._host_ns = at_ns
        before, self._times = self._times, _host_times(self._proc)
        self._host_percent = busy_percent(before, self._times)
        self._available = _available_bytes(self._proc)


def busy_percent(before: tuple[int, int], after: tuple[int, int]) -> float | None:
    """Return the percentage of all processors' time that was in use between two readings of (idle,
    all) ticks; None if fewer than 10 ticks of 10 ms passed, which is too short to tell."""
    idle, whole = after[0] - before[0], after[1] - before[1]
    if whole < 10:
        return None
    return round(min(max(100 * (1 - idle / whole), 0.0), 100.0), 1)


def busy_percent_now(seconds: float = 0.3, proc: str = PROC) -> float | None:
    """Return the percentage of all processors' time in use over the next `seconds`; None if the
    system does not report it."""
    before = _host_times(proc)
    time.sleep(seconds)
    return busy_percent(before, _host_times(proc))


def _host_times(proc: str) -> tuple[int, int]:
    """Return (idle, all) time in ticks. Time spent waiting for storage counts as idle; the time of
    guests is left out, because user time contains it."""
    fields = system_text(Path(proc, "stat")).partition("\n")[0].split()[1:9]
    times = [int(field) for field in fields if field.isdigit()]
    return (times[3] + times[4], sum(times)) if len(times) >= 5 else (0, 0)


def _available_bytes(proc: str) -> int | None:
    for line in system_text(Path(proc, "meminfo")).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None

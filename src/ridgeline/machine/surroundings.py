"""Disturbances of a measurement on this machine: other programs, throttling, limits on clocks and
cores.

`conditions` and `DisturbanceWatch` take readings. The other functions judge them: they return a
reason, a code of `Disturbance` with its numbers, for each disturbance.
"""

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import torch
from msgspec import Struct

from ridgeline.machine import identity, nvml, processor
from ridgeline.machine.identity import resolve_device
from ridgeline.records.comparison import Surroundings
from ridgeline.records.facts import Reason, because
from ridgeline.records.machine import Disturbance

_GIB = 1 << 30
# Memory that a CUDA context, or the reserve of the driver, may use: 0.5 GiB each on an H200.
_CONTEXT_BYTES = _GIB
MIN_SPAN_S = 0.2
"""The shortest span over which the processor time of other programs can be measured. It is counted
in ticks of 10 ms, and the ticks of a process and of a processor do not coincide."""
_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq")


class HostTimes(Struct, frozen=True, kw_only=True):
    """Counters of CPU time, in seconds, over the processors this process may use."""

    at_s: float
    busy_s: float
    steal_s: float
    own_s: float


def conditions(device: str = "cpu") -> tuple[Reason, ...]:
    """Return what would disturb a measurement on `device` now. This takes a fifth of a second."""
    watch = DisturbanceWatch(resolve_device(device))
    time.sleep(0.2)
    return watch.disturbances()


class DisturbanceWatch:
    """Records what disturbs a measurement from its creation on. `look` samples the GPU;
    `disturbances` and `surroundings` report."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._readings: list[nvml.Reading] = []
        self._load = _load()
        self._limits = _limits()
        self._tenants = gpu_now(device) if device.type == "cuda" else ()
        self._before = host_times()

    def look(self, library: Any, handle: Any) -> None:
        """Sample the clocks of the GPU. Call this while it works: an idle GPU is not throttled."""
        reading = nvml.reading(library, handle)
        if reading is not None:
            self._readings.append(reading)

    def others(self) -> tuple[Reason, ...]:
        """Return what other programs did on the device. It will pass, and then it is worth
        measuring again.

        On a GPU the host is ignored: a busy host does not slow down kernels, which are timed on the
        GPU, and the hosts of shared GPUs are always busy."""
        if self._device.type == "cpu":
            return self._host()
        return tuple(one for one in self._tenants if one.code != Disturbance.GPU_UNSEEN)

    def busy_since(self, before: HostTimes) -> bool:
        """Return whether other programs have used the processors since `before`. This is asked for
        each ceiling, because a burst of one second is lost in the mean over a survey of twelve."""
        after = host_times()
        if self._device.type != "cpu" or after.at_s - before.at_s < MIN_SPAN_S:
            return False
        cores = len(processor.affinity())
        return bool(host_disturbances(before, after, cores, None, os.cpu_count() or 1))

    def disturbances(self) -> tuple[Reason, ...]:
        """Return all that disturbed the measurement since this watch was made."""
        return self._host() + self._tenants + self._limits + lowered_clocks(self._readings)

    def surroundings(self) -> Surroundings:
        """Return the same as numbers, for the record of a comparison."""
        after, cores = host_times(), len(processor.affinity())
        others, steal = host_shares(self._before, after, cores)
        return Surroundings(
            device=_device_name(self._device),
            threads=torch.get_num_threads(),
            cores=cores,
            affinity=tuple(sorted(processor.affinity())),
            load_1min=self._load,
            steal_share=steal,
            others_cores=max(others, 0.0),
            disturbances=self.disturbances() + _crowding(self._device, cores, others),
            versions={"torch": str(torch.__version__), "python": platform.python_version()},
        )

    def _host(self) -> tuple[Reason, ...]:
        cores = len(processor.affinity())
        return host_disturbances(self._before, host_times(), cores, self._load, os.cpu_count() or 1)


def host_times() -> HostTimes:
    """Read the counters of CPU time."""
    allowed = processor.affinity()
    counters = psutil.cpu_times(percpu=True)
    mine = [c for i, c in enumerate(counters) if i in allowed] or counters
    own = psutil.Process().cpu_times()
    return HostTimes(
        at_s=time.perf_counter(),
        busy_s=sum(
            c.user + c.system + getattr(c, "irq", 0) + getattr(c, "softirq", 0) for c in mine
        ),
        steal_s=sum(getattr(c, "steal", 0.0) for c in mine),
        own_s=own.user + own.system,
    )


def host_disturbances(
    before: HostTimes, after: HostTimes, cores: int, load: float | None, processors: int
) -> tuple[Reason, ...]:
    """Return what other programs did on the host between two readings. `cores` is the number of
    processors this process may use. `load` is the 1-minute average of the whole machine, and so is
    compared with all its `processors`."""
    found = []
    others, steal = host_shares(before, after, cores)
    if others > max(0.25, 0.05 * cores):
        found.append(because(Disturbance.OTHER_PROCESSES, used_cores=others, cores=cores))
    if load is not None and load > processors:
        found.append(because(Disturbance.LOAD, load=load, processors=processors))
    if steal > 0.02:
        found.append(because(Disturbance.STEAL, share=steal))
    return tuple(found)


def host_shares(before: HostTimes, after: HostTimes, cores: int) -> tuple[float, float]:
    """Return how many processors others kept busy, and the share of stolen time."""
    elapsed = max(after.at_s - before.at_s, 1e-6)
    others = (after.busy_s - before.busy_s - (after.own_s - before.own_s)) / elapsed
    return others, (after.steal_s - before.steal_s) / elapsed / cores


def _crowding(device: torch.device, cores: int, others: float) -> tuple[Reason, ...]:
    """Return a disturbance if torch uses more threads than cores are free. A thread that waits for
    a processor stalls all the others: on two busy cores, the times of two threads had an IQR of
    61 %, those of one thread 14 %."""
    threads = torch.get_num_threads()
    free = cores - others
    if device.type != "cpu" or threads < 2 or threads <= free + 0.25:
        return ()
    better = max(int(free), 1)
    return (
        because(
            Disturbance.TOO_MANY_THREADS, threads=threads, free_cores=max(free, 0.0),
            better_threads=better,
        ),
    )  # fmt: skip


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    return processor.name()


def lowered_clocks(readings: Sequence[nvml.Reading]) -> tuple[Reason, ...]:
    """Return why the device lowered its clocks while it worked, from samples taken meanwhile."""
    found = []
    for bits, code in (
        (nvml.HW_THERMAL | nvml.SW_THERMAL, Disturbance.HOT),
        (nvml.SW_POWER_CAP, Disturbance.POWER_CAP),
        (nvml.HW_POWER_BRAKE, Disturbance.POWER_BRAKE),
        (nvml.SYNC_BOOST, Disturbance.SYNC_BOOST),
    ):
        held = [r for r in readings if r.reasons & bits]
        if held:
            found.append(_lowered(code, held, len(readings)))
    # The general slowdown bit is also set with the specific ones; it counts only without them.
    alone = [
        r
        for r in readings
        if r.reasons & nvml.HW_SLOWDOWN and not r.reasons & (nvml.HW_THERMAL | nvml.HW_POWER_BRAKE)
    ]
    if alone:
        found.append(_lowered(Disturbance.SLOWDOWN, alone, len(readings)))
    return tuple(found)


def _lowered(code: Disturbance, held: Sequence[nvml.Reading], looks: int) -> Reason:
    low = min(held, key=lambda r: r.sm_mhz)
    clocks: dict[str, Any] = {"sm_mhz": low.sm_mhz, "sm_max_mhz": low.sm_max_mhz}
    if code is Disturbance.POWER_CAP:
        power_w = max(r.power_w for r in held)
        return because(
            code, looks=len(held), all_looks=looks, **clocks, power_w=power_w,
            power_limit_w=low.power_limit_w,
        )  # fmt: skip
    hottest_c = max(r.temperature_c for r in held)
    return because(code, looks=len(held), all_looks=looks, **clocks, temperature_c=hottest_c)


def tenant_disturbances(
    tenants: nvml.Tenants, *, own_pid: int, own_bytes: int, has_context: bool, has_run: bool
) -> tuple[Reason, ...]:
    """Return what other processes do on the device, by their ids, their memory and their work.

    In a container, process ids may come from another namespace. If this process has a CUDA context
    and its own id is not listed, one of the listed processes may be this one, and is not counted.
    """
    other_processes = len([pid for pid in tenants.pids if pid != own_pid])
    if has_context and own_pid not in tenants.pids:
        other_processes = max(0, other_processes - 1)
    reserved_bytes = (2 if has_context else 1) * _CONTEXT_BYTES
    foreign_bytes = max(0, tenants.used_bytes - own_bytes - reserved_bytes)
    crowded = other_processes > 0 or foreign_bytes > 0
    found = []
    if crowded:
        found.append(
            because(Disturbance.GPU_SHARED, processes=other_processes, held_bytes=foreign_bytes)
        )
    # Once this process has used the device, the utilisation may be its own; then it counts only if
    # there are others.
    if tenants.utilisation_percent > 5 and (crowded or not has_run):
        found.append(because(Disturbance.GPU_BUSY, share=tenants.utilisation_percent / 100))
    return tuple(found)


def gpu_now(device: torch.device) -> tuple[Reason, ...]:
    """Return what other processes do on the GPU now, or GPU_UNSEEN if that cannot be read."""
    with nvml.session() as library:
        handle = nvml.find(library, identity.address(device)) if library is not None else None
        if handle is None:
            return (because(Disturbance.GPU_UNSEEN),)
        return tenant_disturbances(
            nvml.tenants(library, handle),
            own_pid=os.getpid(),
            own_bytes=torch.cuda.memory_reserved(device),
            has_context=torch.cuda.is_initialized(),
            has_run=torch.cuda.max_memory_reserved(device) > 0,
        )


def frequency_limits(
    governor: str, driver: str, limit_khz: int, max_khz: int
) -> tuple[Reason, ...]:
    """Return the governor and the cap that keep the CPU's clock low."""
    found = []
    # With intel_pstate and amd-pstate, "powersave" is the ordinary governor, which follows the
    # load.
    if governor == "powersave" and "pstate" not in driver:
        found.append(because(Disturbance.POWERSAVE))
    if 0 < limit_khz < 0.95 * max_khz:
        capped = Disturbance.CPU_CLOCK_CAPPED
        found.append(because(capped, limit_ghz=limit_khz / 1e6, max_ghz=max_khz / 1e6))
    return tuple(found)


def _limits() -> tuple[Reason, ...]:
    """Return the limits on clocks, cores and threads that hold for as long as this process runs."""
    governor, driver, limit, largest = (
        processor.system_text(_FREQUENCY / name)
        for name in ("scaling_governor", "scaling_driver", "scaling_max_freq", "cpuinfo_max_freq")
    )
    found = frequency_limits(governor, driver, int(limit or 0), int(largest or 0))
    quota, allowed = processor.cgroup_cpu_quota(), len(processor.affinity())
    if quota is not None and quota < allowed:
        found += (because(Disturbance.CORE_QUOTA, quota_cores=quota, cores=allowed),)
    threads, cores = torch.get_num_threads(), processor.usable_cores()
    # torch starts one thread per physical core, so with two hyperthreads per core, half as many
    # threads as logical cores are normal.
    siblings = (psutil.cpu_count() or 1) // (psutil.cpu_count(logical=False) or 1)
    if threads * max(siblings, 1) < cores:
        found += (because(Disturbance.FEW_THREADS, threads=threads, cores=cores),)
    return found


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None

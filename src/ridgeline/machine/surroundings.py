"""What stands in the way of a fair measurement, each in one sentence with its numbers.

The sentences are pure functions of readings; `conditions` takes the readings.
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

_GIB = 1 << 30
# A CUDA context and the driver's own reserve show as used memory: about 0.5 GiB each on an H200.
_UNSPOKEN_BYTES = _GIB
UNSEEN = "throttling and other processes on the device cannot be seen: no NVML here"
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


def conditions(device: str = "cpu") -> tuple[str, ...]:
    """What would disturb a measurement on `device` now. Looks for a fifth of a second."""
    watch = Watch(resolve_device(device))
    time.sleep(0.2)
    return watch.sentences()


class Watch:
    """Notes the surroundings when made, looks at the GPU when asked, and says what it saw."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._readings: list[nvml.Reading] = []
        self._load = _load()
        self._standing = _limits()
        self._tenants = gpu_now(device) if device.type == "cuda" else ()
        self._before = host_times()

    def look(self, library: Any, handle: Any) -> None:
        """Call while the GPU works: an idle one is not throttled."""
        reading = nvml.reading(library, handle)
        if reading is not None:
            self._readings.append(reading)

    def others(self) -> tuple[str, ...]:
        """What others did on the device: it will pass, and then measuring again is worth it.

        A busy host does not slow a GPU's kernels, which are timed on the GPU, and hosts of shared
        GPUs are always busy."""
        if self._device.type == "cpu":
            return self._host()
        return tuple(said for said in self._tenants if said != UNSEEN)

    def busy_since(self, before: HostTimes) -> bool:
        """Return whether other programs have used the processors since `before`. This is asked for
        each ceiling, because a burst of one second is lost in the mean over a survey of twelve."""
        after = host_times()
        if self._device.type != "cpu" or after.at_s - before.at_s < MIN_SPAN_S:
            return False
        cores = len(processor.affinity())
        return bool(host_sentences(before, after, cores, None, os.cpu_count() or 1))

    def sentences(self) -> tuple[str, ...]:
        throttled = throttle_sentences(self._readings)
        return self._host() + self._tenants + self._standing + throttled

    def surroundings(self) -> Surroundings:
        """All of it as numbers, for the record of a comparison."""
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
            sentences=self.sentences() + _crowding(self._device, cores, others),
            versions={"torch": str(torch.__version__), "python": platform.python_version()},
        )

    def _host(self) -> tuple[str, ...]:
        cores = len(processor.affinity())
        return host_sentences(self._before, host_times(), cores, self._load, os.cpu_count() or 1)


def host_times() -> HostTimes:
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


def host_sentences(
    before: HostTimes, after: HostTimes, cores: int, load: float | None, processors: int
) -> tuple[str, ...]:
    """A busy host. `load` is the 1-minute average, which is the whole machine's and so is held
    against all its `processors`, whatever part of them (`cores`) this process may use."""
    said = []
    others, steal = host_shares(before, after, cores)
    if others > max(0.25, 0.05 * cores):
        said.append(f"other processes use {others:.1f} of {cores} cores")
    if load is not None and load > processors:
        said.append(f"the 1-minute load is {load:.1f} on {processors} processors")
    if steal > 0.02:
        said.append(f"the hypervisor takes {steal:.0%} of the CPU time (steal)".replace("%", " %"))
    return tuple(said)


def host_shares(before: HostTimes, after: HostTimes, cores: int) -> tuple[float, float]:
    """Processors' worth of work done by others, and the share of the time that was stolen."""
    elapsed = max(after.at_s - before.at_s, 1e-6)
    others = (after.busy_s - before.busy_s - (after.own_s - before.own_s)) / elapsed
    return others, (after.steal_s - before.steal_s) / elapsed / cores


def _crowding(device: torch.device, cores: int, others: float) -> tuple[str, ...]:
    """Two threads on two busy cores spread over 61 % (IQR) where one spread over 14 %: a thread
    that waits for a processor stalls all the others."""
    threads = torch.get_num_threads()
    free = cores - others
    if device.type != "cpu" or threads < 2 or threads <= free + 0.25:
        return ()
    return (
        f"torch uses {threads} threads and {max(free, 0):.1f} cores were free: fewer "
        f"(OMP_NUM_THREADS={max(int(free), 1)}) would be steadier",
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    return processor.name()


def throttle_sentences(readings: Sequence[nvml.Reading]) -> tuple[str, ...]:
    """Why the clocks were held down while the device worked, from looks taken in between."""
    said = []
    for bits, cause in (
        (nvml.HW_THERMAL | nvml.SW_THERMAL, "thermal throttling"),
        (nvml.SW_POWER_CAP, "power cap"),
        (nvml.HW_POWER_BRAKE, "external power brake"),
        (nvml.SYNC_BOOST, "clocks tied to another GPU's (sync boost)"),
    ):
        held = [r for r in readings if r.reasons & bits]
        if held:
            said.append(_held(cause, held, len(readings)))
    # The general slowdown bit accompanies the specific ones; alone it is news.
    alone = [
        r
        for r in readings
        if r.reasons & nvml.HW_SLOWDOWN and not r.reasons & (nvml.HW_THERMAL | nvml.HW_POWER_BRAKE)
    ]
    if alone:
        said.append(_held("hardware slowdown", alone, len(readings)))
    return tuple(said)


def _held(cause: str, held: Sequence[nvml.Reading], looks: int) -> str:
    low = min(held, key=lambda r: r.sm_mhz)
    facts = [f"SM clock down to {low.sm_mhz} of {low.sm_max_mhz} MHz"]
    if cause == "power cap":
        power = max(r.power_w for r in held)
        facts.append(f"{power:.0f} W of a {low.power_limit_w:.0f} W limit")
    else:
        facts.append(f"{max(r.temperature_c for r in held)} °C")
    return f"{cause} in {len(held)} of {looks} looks while measuring: {', '.join(facts)}"


def tenant_sentences(
    tenants: nvml.Tenants, *, own_pid: int, own_bytes: int, has_context: bool, has_run: bool
) -> tuple[str, ...]:
    """Other processes on the device, by their ids, their memory and their work.

    In a container ids may come from another namespace: if this process has a CUDA context and its
    own id is not listed, one of the strangers may be itself, and is not counted.
    """
    strangers = len([pid for pid in tenants.pids if pid != own_pid])
    if has_context and own_pid not in tenants.pids:
        strangers = max(0, strangers - 1)
    foreign = max(0, tenants.used_bytes - own_bytes - (2 if has_context else 1) * _UNSPOKEN_BYTES)
    crowded = strangers > 0 or foreign > 0
    said = []
    if crowded:
        who = f"{strangers or 'unlisted'} other process{'' if strangers == 1 else 'es'}"
        said.append(f"{who} on the device, {foreign / _GIB:.1f} GiB of its memory held by others")
    # After our own work the utilisation is ours; then it only counts beside other evidence.
    if tenants.utilisation_percent > 5 and (crowded or not has_run):
        said.append(f"the device was {tenants.utilisation_percent} % busy before we started")
    return tuple(said)


def gpu_now(device: torch.device) -> tuple[str, ...]:
    """Who else is on the GPU; says so where it cannot be seen."""
    with nvml.session() as library:
        handle = nvml.find(library, identity.address(device)) if library is not None else None
        if handle is None:
            return (UNSEEN,)
        return tenant_sentences(
            nvml.tenants(library, handle),
            own_pid=os.getpid(),
            own_bytes=torch.cuda.memory_reserved(device),
            has_context=torch.cuda.is_initialized(),
            has_run=torch.cuda.max_memory_reserved(device) > 0,
        )


def frequency_sentences(
    governor: str, driver: str, limit_khz: int, most_khz: int
) -> tuple[str, ...]:
    """A governor or a cap that holds the CPU's clock down."""
    said = []
    # Under intel_pstate and amd-pstate "powersave" is the ordinary, load-following governor.
    if governor == "powersave" and "pstate" not in driver:
        said.append("the CPU frequency governor is powersave, which keeps the lowest clock")
    if 0 < limit_khz < 0.95 * most_khz:
        said.append(f"the CPU clock is capped at {limit_khz / 1e6:.2f} of {most_khz / 1e6:.2f} GHz")
    return tuple(said)


def _limits() -> tuple[str, ...]:
    def read(name: str) -> str:
        try:
            return (_FREQUENCY / name).read_text().strip()
        except OSError:
            return ""

    said = frequency_sentences(
        read("scaling_governor"),
        read("scaling_driver"),
        int(read("scaling_max_freq") or 0),
        int(read("cpuinfo_max_freq") or 0),
    )
    quota, allowed = processor.cgroup_cpu_quota(), len(processor.affinity())
    if quota is not None and quota < allowed:
        said += (f"a cgroup quota allows {quota:.2g} of {allowed} cores",)
    threads, cores = torch.get_num_threads(), processor.usable_cores()
    # torch starts one thread a physical core, so with two hyperthreads each half is no news.
    siblings = (psutil.cpu_count() or 1) // (psutil.cpu_count(logical=False) or 1)
    if threads * max(siblings, 1) < cores:
        said += (f"torch uses {threads} of {cores} cores (torch.get_num_threads)",)
    return said


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None

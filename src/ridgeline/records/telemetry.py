"""What the machine did while a program ran: a line of telemetry.jsonl, ten a second.

Sampled by a process of its own, so that the program pays nothing for it.
"""

from msgspec import Struct


class ProcessSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process of the program: itself, or a worker. Counters are since it began."""

    pid: int
    worker: bool = False
    cpu_s: float = 0.0
    """User and system time."""
    rss_bytes: int = 0
    read_bytes: int = 0
    """From storage; 0 where the system does not say."""
    write_bytes: int = 0
    major_faults: int = 0
    """Page faults that had to wait for storage."""
    threads: int = 0


class DeviceSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU. None: the driver does not say."""

    index: int
    """As NVML counts them."""
    utilisation_percent: int | None = None
    memory_used_bytes: int | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    energy_j: float | None = None
    """The device's own counter, since the driver was loaded."""
    throttle: tuple[str, ...] = ()
    """Why its clocks are held down: "power cap", "thermal", "hardware slowdown", …"""
    others: int = 0
    """Other processes with work on it."""
    ours: bool = False
    """A process of the program was seen at work on it; False too where ids cannot be matched."""


class Telemetry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_ns: int
    """CLOCK_MONOTONIC, as the steps."""
    processes: tuple[ProcessSample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    host_cpu_percent: float | None = None
    """Of all processors, whoever used them."""
    host_memory_available_bytes: int | None = None
    package_energy_j: float | None = None
    """The processor's own energy counter (RAPL), where it may be read."""

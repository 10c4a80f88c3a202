"""Readings from NVIDIA's management library (NVML): driver, throttling, other processes.

Every reading may be missing: there is no NVML, a container hides it, the device is a MIG slice or
an AMD card. Then the result is None or empty, and nothing is raised. A torch device is looked up by
UUID or PCI address and never by index, because CUDA_VISIBLE_DEVICES renumbers torch's devices but
not NVML's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

# Bits of NVML's clocks event reasons, formerly called throttle reasons.
CLOCK_SETTING = 0x02
SW_POWER_CAP = 0x04
HW_SLOWDOWN = 0x08
SYNC_BOOST = 0x10
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80

_REASON_WORDS = (
    (SW_POWER_CAP, "power cap"),
    (SW_THERMAL | HW_THERMAL, "thermal"),
    (HW_POWER_BRAKE, "power brake"),
    (SYNC_BOOST, "sync boost"),
    (CLOCK_SETTING, "clocks set by hand"),
)


class Address(Struct, frozen=True):
    """Says how to find a torch device in NVML: its UUID without the prefix GPU-, its PCI address,
    its name. Unknown parts are ""."""

    uuid: str = ""
    pci: str = ""
    name: str = ""


class Reading(Struct, frozen=True, kw_only=True):
    """The clocks, power and temperature of a device under load."""

    reasons: int
    """Bits that say why the clocks are not at their highest."""
    sm_mhz: int = 0
    sm_max_mhz: int = 0
    power_w: float = 0.0
    power_limit_w: float = 0.0
    temperature_c: int = 0


class Tenants(Struct, frozen=True, kw_only=True):
    """The processes on a device, with the memory and the utilisation of all together."""

    pids: tuple[int, ...] = ()
    used_bytes: int = 0
    utilisation_percent: int = 0


@contextmanager
def session() -> Iterator[Any | None]:
    """Yield pynvml after nvmlInit; None if that fails."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a missing module or library, or a driver that does not match it
        yield None
        return
    try:
        yield pynvml
    finally:
        ask(pynvml, "nvmlShutdown")


def driver(library: Any) -> str:
    return string(ask(library, "nvmlSystemGetDriverVersion"))


def find(library: Any, address: Address) -> Any | None:
    """Return the NVML handle of a torch device; None if it cannot be identified for certain."""
    if address.uuid:
        handle = ask(library, "nvmlDeviceGetHandleByUUID", f"GPU-{address.uuid}")
        if handle is not None:
            return handle
    if address.pci:
        handle = ask(library, "nvmlDeviceGetHandleByPciBusId", address.pci)
        if handle is not None:
            return handle
    # If the machine has one device only, and its name agrees, there is no risk of confusion.
    if ask(library, "nvmlDeviceGetCount") == 1:
        handle = ask(library, "nvmlDeviceGetHandleByIndex", 0)
        if handle is not None and string(ask(library, "nvmlDeviceGetName", handle)) == (
            address.name
        ):
            return handle
    return None


def reasons(library: Any, handle: Any) -> int | None:
    """Return the bits that say why the clocks are not at their highest; None if unknown."""
    # The function was renamed in driver 535; older libraries know only the first name.
    bits = ask(library, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if bits is None:
        bits = ask(library, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    return None if bits is None else int(bits)


def reason_words(bits: int) -> tuple[str, ...]:
    """Return the reasons in words. That a device is idle is no reason."""
    words = tuple(word for mask, word in _REASON_WORDS if bits & mask)
    # The general slowdown bit is also set with the specific ones; it counts only without them.
    if bits & HW_SLOWDOWN and not bits & (HW_THERMAL | HW_POWER_BRAKE):
        words += ("hardware slowdown",)
    return words


def reading(library: Any, handle: Any) -> Reading | None:
    bits = reasons(library, handle)
    if bits is None:
        return None
    return Reading(
        reasons=bits,
        sm_mhz=ask(library, "nvmlDeviceGetClockInfo", handle, library.NVML_CLOCK_SM) or 0,
        sm_max_mhz=ask(library, "nvmlDeviceGetMaxClockInfo", handle, library.NVML_CLOCK_SM) or 0,
        power_w=(ask(library, "nvmlDeviceGetPowerUsage", handle) or 0) / 1000,
        power_limit_w=(ask(library, "nvmlDeviceGetEnforcedPowerLimit", handle) or 0) / 1000,
        temperature_c=ask(library, "nvmlDeviceGetTemperature", handle, library.NVML_TEMPERATURE_GPU)
        or 0,
    )


def process_ids(library: Any, handle: Any) -> tuple[int, ...]:
    """Return the ids of the processes with a context on the device. In a container they may belong
    to another namespace."""
    listed = ask(library, "nvmlDeviceGetComputeRunningProcesses", handle) or []
    return tuple(int(process.pid) for process in listed)


def tenants(library: Any, handle: Any) -> Tenants:
    memory = ask(library, "nvmlDeviceGetMemoryInfo", handle)
    rates = ask(library, "nvmlDeviceGetUtilizationRates", handle)
    return Tenants(
        pids=process_ids(library, handle),
        used_bytes=int(memory.used) if memory else 0,
        utilisation_percent=int(rates.gpu) if rates else 0,
    )


def ask(library: Any, name: str, *arguments: Any) -> Any | None:
    """Call an NVML function; return None if it fails or does not exist."""
    try:
        return getattr(library, name)(*arguments)
    except Exception:  # subclasses of NVMLError, and functions missing from an old library
        return None


def string(value: Any) -> str:
    """Return a string of NVML, which older versions return as bytes; "" for None."""
    return value.decode() if isinstance(value, bytes) else str(value or "")

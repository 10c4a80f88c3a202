"""NVIDIA's management library, where there is one: driver, throttling, other processes.

Every reading may be missing: no NVML, a container without it, a MIG slice, an AMD card. Then the
answer is None or empty and never an exception. A torch device is found by UUID or PCI address,
never by index: CUDA_VISIBLE_DEVICES renumbers torch's devices and not NVML's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

# Bits of the clocks event (formerly throttle) reasons.
CLOCK_SETTING = 0x02
SW_POWER_CAP = 0x04
HW_SLOWDOWN = 0x08
SYNC_BOOST = 0x10
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80

_WORDS = (
    (SW_POWER_CAP, "power cap"),
    (SW_THERMAL | HW_THERMAL, "thermal"),
    (HW_POWER_BRAKE, "power brake"),
    (SYNC_BOOST, "sync boost"),
    (CLOCK_SETTING, "clocks set by hand"),
)


class Address(Struct, frozen=True):
    """Where a torch device is: UUID without its GPU- prefix, PCI address; "" where unknown."""

    uuid: str = ""
    pci: str = ""
    name: str = ""


class Reading(Struct, frozen=True, kw_only=True):
    """One look at a device under load."""

    reasons: int
    sm_mhz: int = 0
    sm_max_mhz: int = 0
    power_w: float = 0.0
    power_limit_w: float = 0.0
    temperature_c: int = 0


class Tenants(Struct, frozen=True, kw_only=True):
    """Who else is on the device."""

    pids: tuple[int, ...] = ()
    used_bytes: int = 0
    utilisation_percent: int = 0


@contextmanager
def session() -> Iterator[Any | None]:
    """pynvml, started; None where it cannot be."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # missing module, missing library, driver mismatch: all mean "no NVML"
        yield None
        return
    try:
        yield pynvml
    finally:
        ask(pynvml, "nvmlShutdown")


def driver(library: Any) -> str:
    return string(ask(library, "nvmlSystemGetDriverVersion"))


def find(library: Any, address: Address) -> Any | None:
    """The NVML handle of a torch device, or None rather than the wrong device."""
    if address.uuid:
        handle = ask(library, "nvmlDeviceGetHandleByUUID", f"GPU-{address.uuid}")
        if handle is not None:
            return handle
    if address.pci:
        handle = ask(library, "nvmlDeviceGetHandleByPciBusId", address.pci)
        if handle is not None:
            return handle
    # With one device in the machine there is nothing to confuse, if the name agrees too.
    if ask(library, "nvmlDeviceGetCount") == 1:
        handle = ask(library, "nvmlDeviceGetHandleByIndex", 0)
        if handle is not None and string(ask(library, "nvmlDeviceGetName", handle)) == (
            address.name
        ):
            return handle
    return None


def reasons(library: Any, handle: Any) -> int | None:
    """Why the clocks are not at their highest, as bits."""
    # Renamed in driver 535; older libraries know only the first name.
    bits = ask(library, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if bits is None:
        bits = ask(library, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    return None if bits is None else int(bits)


def reason_words(bits: int) -> tuple[str, ...]:
    """The same in words; an idle device is not held down."""
    words = tuple(word for mask, word in _WORDS if bits & mask)
    # The general slowdown bit accompanies the specific ones; alone it is news.
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
    """Processes with a context on the device, by ids that may be another namespace's."""
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
    try:
        return getattr(library, name)(*arguments)
    except Exception:  # NVMLError's children, and symbols missing from an old library
        return None


def string(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")

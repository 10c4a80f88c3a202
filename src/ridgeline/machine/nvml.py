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
SW_POWER_CAP = 0x04
HW_SLOWDOWN = 0x08
SYNC_BOOST = 0x10
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80


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
        _ask(pynvml, "nvmlShutdown")


def driver(library: Any) -> str:
    return _string(_ask(library, "nvmlSystemGetDriverVersion"))


def find(library: Any, address: Address) -> Any | None:
    """The NVML handle of a torch device, or None rather than the wrong device."""
    if address.uuid:
        handle = _ask(library, "nvmlDeviceGetHandleByUUID", f"GPU-{address.uuid}")
        if handle is not None:
            return handle
    if address.pci:
        handle = _ask(library, "nvmlDeviceGetHandleByPciBusId", address.pci)
        if handle is not None:
            return handle
    # With one device in the machine there is nothing to confuse, if the name agrees too.
    if _ask(library, "nvmlDeviceGetCount") == 1:
        handle = _ask(library, "nvmlDeviceGetHandleByIndex", 0)
        if handle is not None and _string(_ask(library, "nvmlDeviceGetName", handle)) == (
            address.name
        ):
            return handle
    return None


def reading(library: Any, handle: Any) -> Reading | None:
    # Renamed in driver 535; older libraries know only the first name.
    reasons = _ask(library, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if reasons is None:
        reasons = _ask(library, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:
        return None
    return Reading(
        reasons=int(reasons),
        sm_mhz=_ask(library, "nvmlDeviceGetClockInfo", handle, library.NVML_CLOCK_SM) or 0,
        sm_max_mhz=_ask(library, "nvmlDeviceGetMaxClockInfo", handle, library.NVML_CLOCK_SM) or 0,
        power_w=(_ask(library, "nvmlDeviceGetPowerUsage", handle) or 0) / 1000,
        power_limit_w=(_ask(library, "nvmlDeviceGetEnforcedPowerLimit", handle) or 0) / 1000,
        temperature_c=_ask(
            library, "nvmlDeviceGetTemperature", handle, library.NVML_TEMPERATURE_GPU
        )
        or 0,
    )


def tenants(library: Any, handle: Any) -> Tenants:
    processes = _ask(library, "nvmlDeviceGetComputeRunningProcesses", handle) or []
    memory = _ask(library, "nvmlDeviceGetMemoryInfo", handle)
    rates = _ask(library, "nvmlDeviceGetUtilizationRates", handle)
    return Tenants(
        pids=tuple(int(p.pid) for p in processes),
        used_bytes=int(memory.used) if memory else 0,
        utilisation_percent=int(rates.gpu) if rates else 0,
    )


def _ask(library: Any, name: str, *arguments: Any) -> Any | None:
    try:
        return getattr(library, name)(*arguments)
    except Exception:  # NVMLError's children, and symbols missing from an old library
        return None


def _string(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")

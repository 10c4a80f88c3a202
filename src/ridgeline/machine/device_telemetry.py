"""The GPUs a program works on, as NVML shows them from outside.

Whose a GPU is: those on which one of the program's processes has work; until one is seen, those
CUDA_VISIBLE_DEVICES names; else all. In a container NVML may give ids of another namespace, so that
none ever matches, and its list of processes then cannot tell the program from others.
"""

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct

from ridgeline.machine import nvml
from ridgeline.machine.nvml import ask
from ridgeline.records.run import DeviceSample

_SECOND = 1_000_000_000


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
        self._named = named(visible, _uuids(library, self._handles))
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
        if self._asked_ns is None or at_ns - self._asked_ns >= _SECOND:
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


def named(visible: str | None, uuids: Sequence[tuple[int, str]]) -> list[int]:
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

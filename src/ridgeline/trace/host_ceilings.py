"""What this machine's CPU can do at most, from what was measured here (`ridgeline hardware
--measure`) and kept; without importing torch, so for any of its versions and thread counts."""

from importlib import metadata

import msgspec

from ridgeline.machine import native, processor
from ridgeline.machine.cache import Entry, folder
from ridgeline.machine.datasheet import DTYPES
from ridgeline.records.machine import Device


def host_device(threads: int = 0, torch: str = "") -> Device | None:
    """Return the CPU with its stored ceilings; None if nothing was measured on a CPU like it."""
    entry = host_entry(threads, torch)
    return None if entry is None else _device(entry)


def host_entry(threads: int = 0, torch: str = "") -> Entry | None:
    """Return what was measured on a CPU like this one, or None.

    `threads`: torch's, where known: measurements with as many are preferred, else those with the
    most. `torch`: its version, likewise; by default the installed one's.
    """
    name, cores = processor.name(), processor.usable_cores()
    found = [
        (entry, age)
        for entry, age in _entries()
        if entry.key.kind == "cpu" and entry.key.name == name and entry.key.cores == cores
    ]
    if not found:
        return None
    version = torch or _installed()

    def fit(candidate: tuple[Entry, float]) -> tuple[bool, bool, int, float]:
        key = candidate[0].key
        same = bool(version) and key.torch.partition("+")[0] == version.partition("+")[0]
        return threads > 0 and key.threads == threads, same, key.threads, candidate[1]

    return max(found, key=fit)[0]


def _device(entry: Entry) -> Device:
    flags = processor.flags()
    supports = {dtype: native.on_cpu(dtype, flags) for dtype in DTYPES}
    return Device(
        kind="cpu",
        index=0,
        name=processor.name(),
        memory_bytes=processor.memory_bytes(),
        architecture=processor.widest_extension(flags),
        cores=processor.usable_cores(),
        cache_bytes=processor.cache_bytes(),
        ceilings=native.with_ratios(entry.marked(), supports),
    )


def _entries() -> list[tuple[Entry, float]]:
    """Those that can be read and hold something, with their time of writing."""
    found = []
    try:
        files = sorted((folder() / "ceilings").glob("*.json"))
    except OSError:
        return []
    for file in files:
        try:
            entry = msgspec.json.decode(file.read_bytes(), type=Entry)
            if entry.ceilings and entry.schema == 1:
                found.append((entry, file.stat().st_mtime))
        except (OSError, ValueError):
            continue
    return found


def _installed() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""

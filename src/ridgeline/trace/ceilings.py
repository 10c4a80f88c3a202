"""What the traced device can do at most: measured on this machine if it is one of that name and was
measured (`ridgeline hardware --measure`), else by the datasheet, else nothing."""

from collections.abc import Iterator

import msgspec

from ridgeline.machine.cache import Entry, folder
from ridgeline.records.machine import Device
from ridgeline.trace.analyses.known_device import known_device
from ridgeline.trace.trace import DeviceProperties


def device_of(properties: DeviceProperties) -> Device | None:
    listed = known_device(properties)
    measured = next((e for e in _entries() if e.key.name == properties.name and e.key.name), None)
    if measured is None:
        return listed
    held = {(c.quantity, c.dtype) for c in measured.marked() if c.state == "usable"}
    rest = listed.ceilings if listed is not None else ()
    return Device(
        kind="cuda",
        index=properties.id,
        name=properties.name,
        memory_bytes=properties.memory_bytes,
        cores=properties.cores,
        ceilings=(*measured.marked(), *(c for c in rest if (c.quantity, c.dtype) not in held)),
    )


def _entries() -> Iterator[Entry]:
    try:
        files = sorted((folder() / "ceilings").glob("*.json"))
    except OSError:
        return
    for file in files:
        try:
            yield msgspec.json.decode(file.read_bytes(), type=Entry)
        except (OSError, ValueError):
            continue

"""What a file says beside its events: devices, rank, switches. Every field may lie or be absent."""

from collections.abc import Mapping
from typing import Any

from ridgeline.trace.trace import DeviceProperties, Metadata

_SWITCHES = (
    "schemaVersion", "with_stack", "with_flops", "with_modules", "record_shapes", "profile_memory",
    "cupti_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version",
    "hip_driver_version", "roctracer_version", "trace_id", "displayTimeUnit", "traceName",
)  # fmt: skip
MOST_MESSAGES = 200


def metadata_of(beside: Mapping[str, Any]) -> Metadata:
    distributed = beside.get("distributedInfo")
    if not isinstance(distributed, dict):
        distributed = {}
    backend = distributed.get("backend")
    return Metadata(
        base_ns=_whole(beside.get("baseTimeNanoseconds")) or 0,
        rank=_whole(distributed.get("rank")),
        world_size=_whole(distributed.get("world_size")),
        backend=backend[:40] if isinstance(backend, str) else "",
        devices=_devices(beside.get("deviceProperties")),
        recorded={key: _plain(beside[key]) for key in _SWITCHES if key in beside},
        messages=_messages(beside),
    )


def _devices(listed: Any) -> tuple[DeviceProperties, ...]:
    if not isinstance(listed, list):
        return ()
    found = []
    for entry in listed[:1024]:
        if not isinstance(entry, dict):
            continue
        name = entry.get("name")
        found.append(
            DeviceProperties(
                id=_whole(entry.get("id")) or 0,
                name=name[:200] if isinstance(name, str) else "",
                memory_bytes=_whole(entry.get("totalGlobalMem")) or 0,
                cores=_whole(entry.get("numSms")) or 0,
                major=_whole(entry.get("computeMajor")) or 0,
                minor=_whole(entry.get("computeMinor")) or 0,
                warp=_whole(entry.get("warpSize")) or 0,
            )
        )
    return tuple(found)


def _messages(beside: Mapping[str, Any]) -> tuple[str, ...]:
    """Kineto's log, by level; errors and warnings first."""
    lines = []
    for level in ("ERROR", "WARNING", "INFO"):
        listed = beside.get(level)
        if isinstance(listed, list):
            lines += [line[:1000] for line in listed if isinstance(line, str)]
    return tuple(lines[:MOST_MESSAGES])


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 2**63 else None


def _plain(value: Any) -> str | int | float:
    if isinstance(value, str):
        return value[:200]
    return value if isinstance(value, int) and abs(value) < 2**63 else str(value)[:40]

"""Writes the levels of a study as counter tracks, which ui.perfetto.dev and chrome://tracing show
beside each other, with the peak, the steps and the shortages marked."""

from typing import Any

from ridgeline.records.memory import DeviceMemory, MemoryStudy

NS_PER_US = 1000


def counter_tracks(study: MemoryStudy) -> dict[str, Any]:
    """Return the study as a trace in the JSON format that Perfetto reads."""
    events: list[dict[str, Any]] = []
    for number, device in enumerate(study.devices):
        events += _device(device, number + 1)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"source": study.source}}


def _device(device: DeviceMemory, process: int) -> list[dict[str, Any]]:
    levels = device.levels
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": process, "name": "process_name",
         "args": {"name": f"memory of {device.device}"}},
    ]  # fmt: skip
    for place, at_ns in enumerate(levels.at_ns):
        by_kind = {kind.value: level[place] for kind, level in levels.levels.items()}
        events.append(_counter("allocated by kind", process, at_ns, by_kind))
        total = {"bytes": sum(by_kind.values())}
        events.append(_counter("allocated", process, at_ns, total))
        if levels.reserved:
            reserved = {"bytes": levels.reserved[place]}
            events.append(_counter("reserved", process, at_ns, reserved))
    for step, at_ns in enumerate(levels.step_starts_ns):
        events.append(_mark(f"step {step}", process, at_ns, {}))
    peak = {"bytes": device.peak.bytes, "phase": device.peak.phase}
    events.append(_mark("peak", process, device.peak.at_ns, peak))
    for shortage in device.shortages:
        asked = {"requested_bytes": shortage.requested_bytes, "free_bytes": shortage.free_bytes}
        events.append(_mark("out of memory", process, shortage.at_ns, asked))
    return events


def _counter(name: str, process: int, at_ns: int, values: dict[str, int]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": process, "ts": at_ns / NS_PER_US, "args": values}


def _mark(name: str, process: int, at_ns: int, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "i", "s": "p", "name": name, "pid": process, "tid": 0, "ts": at_ns / NS_PER_US,
        "args": facts,
    }  # fmt: skip

"""The verdict: one sentence on what held the device back, or on what it was busy with."""

import re
from collections.abc import Sequence

from ridgeline import units
from ridgeline.records.facts import Check
from ridgeline.records.trace import CategoryRow, DeviceTime, Idle, KernelRow, OpRow, Window

MIN_BUSY_SHARE = 0.95
"""From this share of busy time on, the verdict says what the device was busy with, and not why it
idled."""
MIN_COPY_SHARE = 0.5
"""From this share of copies between host and device on, a busy device does no useful work."""
_LINK = re.compile(r"Memcpy (?:HtoD|DtoH)|Copy(?:HostToDevice|DeviceToHost)")
_GPUS = re.compile(r"^nccl:|cudnn|cublas|^cuda|::_(?:flash|efficient)_attention")
"""Operators that only run on a GPU."""

_WORDS = {
    "input": "waiting for input",
    "synchronisation": "because the host waited for the device",
    "transfer": "while data was copied to it",
    "launch-bound": "because the host could not launch work fast enough",
    "allocator": "while memory was being allocated",
    "compile": "while code was being compiled",
    "collective wait": "while the host waited for other ranks",
    "garbage collection": "during garbage collection",
    "other host": "while the host was in the program's own code",
    "between kernels": "between kernels already queued",
    "unknown": "for reasons the trace does not hold",
}


def verdict(
    devices: tuple[DeviceTime, ...],
    idle: Idle,
    categories: tuple[CategoryRow, ...],
    ops: tuple[OpRow, ...],
    checks: tuple[Check, ...],
    window: Window,
    *,
    kernels: Sequence[KernelRow] = (),
    backend: str = "",
) -> str:
    if not devices:
        return _host_only(window, ops, checks, backend)
    measured = [device for device in devices if device.busy_ns is not None]
    if not measured or idle.total_ns is None:
        return f"how busy the device was cannot be told: {devices[0].trust.why or idle.trust.why}"
    total = sum(device.window.ns for device in measured)
    busy = sum(device.busy_ns or 0 for device in measured)
    share = busy / total if total else 0.0
    devices_named = f"{len(measured)} devices" if len(measured) > 1 else "the device"
    are, idles = ("are", "idle") if len(measured) > 1 else ("is", "idles")
    copied = copied_share(kernels)
    if copied >= MIN_COPY_SHARE and copied * share > 1 - share:
        part = _percent(copied)
        sentence = f"{devices_named} {are} busy {_percent(share)} of {_spans(measured)}"
        return f"{sentence}, but {part} of that copies data to or from the host"
    if share >= MIN_BUSY_SHARE or not idle.causes:
        sentence = f"{devices_named} {are} busy {_percent(share)} of {_spans(measured)}"
        if not categories:
            return sentence
        return f"{sentence}, {_percent(categories[0].share)} of it {categories[0].category}"
    cause = idle.causes[0]
    place = f" ({cause.places[0].file}:{cause.places[0].line})" if cause.places else ""
    return (
        f"{devices_named} {idles} {_percent(1 - share)} of {_spans(measured)}, "
        f"{_percent(cause.share)} of that {_WORDS[cause.cause]}{place}"
    )


def copied_share(kernels: Sequence[KernelRow]) -> float:
    """Return the share of device time that copies between host and device take."""
    return sum(row.share for row in kernels if _LINK.search(row.name))


def on_gpus(ops: Sequence[OpRow], backend: str) -> str:
    """Return the backend or operator that shows that the program uses a GPU, for a trace without
    device work; "" if there is none."""
    if backend == "nccl":
        return backend
    return next((row.name for row in ops if _GPUS.search(row.name)), "")


def _host_only(
    window: Window, ops: tuple[OpRow, ...], checks: tuple[Check, ...], backend: str
) -> str:
    error = next((c for c in checks if c.severity == "error" and "idle" in c.affects), None)
    if error is not None:
        return f"how busy the device was cannot be told: {error.claim}"
    if not window.ns:
        return "the trace holds no timed work"
    if not ops:
        return f"no device work and no operators in {_time(window.ns)}"
    top = max(ops, key=lambda row: row.host_self_ns)
    if evidence := on_gpus(ops, backend):
        return (
            f"only the host was recorded, though the program uses GPUs ({evidence}): "
            f"{top.name} takes most of its time, {_time(top.host_self_ns)}"
        )
    return f"no device work: on the host {top.name} takes most, {_time(top.host_self_ns)}"


def _spans(devices: Sequence[DeviceTime]) -> str:
    """Return the length of the window; of several devices, the shortest and the longest."""
    spans = sorted({device.window.ns for device in devices})
    if len(spans) == 1:
        return _time(spans[0])
    return f"their own windows ({_time(spans[0])} to {_time(spans[-1])})"


def _time(ns: int) -> str:
    return units.seconds(ns / 1e9)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

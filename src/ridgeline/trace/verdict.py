"""The one sentence: what held the device back, or what it was busy with."""

from ridgeline.records.trace import CategoryRow, DeviceTime, Idle, OpRow, Window

BUSY = 0.95
"""Above this share of busy time idling is not what to look at."""

_WORDS = {
    "input": "waiting for input",
    "synchronisation": "because the host waited for the device",
    "transfer": "while data was copied to it",
    "launch-bound": "because the host could not launch work fast enough",
    "allocator": "while memory was being allocated",
    "compile": "while code was being compiled",
    "collective wait": "while the host waited for other ranks",
    "garbage collection": "during garbage collection",
    "other host": "while the host was in the program's own Python",
    "between kernels": "between kernels already queued",
    "unknown": "for reasons the trace does not hold",
}


def verdict(
    window: Window,
    devices: tuple[DeviceTime, ...],
    idle: Idle,
    categories: tuple[CategoryRow, ...],
    ops: tuple[OpRow, ...],
) -> str:
    if not devices:
        return _host_only(window, ops)
    if any(d.busy_ns is None for d in devices) or idle.total_ns is None:
        return f"how busy the device was cannot be told: {devices[0].trust.why or idle.trust.why}"
    total = sum(d.window.ns for d in devices)
    busy = sum(d.busy_ns or 0 for d in devices)
    share = busy / total if total else 0.0
    many = f"{len(devices)} devices" if len(devices) > 1 else "the device"
    are, idles = ("are", "idle") if len(devices) > 1 else ("is", "idles")
    if share >= BUSY or not idle.causes:
        most = (
            f", {_percent(categories[0].share)} of it {categories[0].category}"
            if categories
            else ""
        )
        return f"{many} {are} busy {_percent(share)} of {_ms(window)}{most}"
    cause = idle.causes[0]
    place = f" ({cause.places[0].file}:{cause.places[0].line})" if cause.places else ""
    return (
        f"{many} {idles} {_percent(1 - share)} of {_ms(window)}, "
        f"{_percent(cause.share)} of that {_WORDS[cause.cause]}{place}"
    )


def _host_only(window: Window, ops: tuple[OpRow, ...]) -> str:
    if not window.ns:
        return "the trace holds no timed work"
    if not ops:
        return f"no device work and no operators in {_ms(window)}"
    top = max(ops, key=lambda row: row.host_self_ns)
    return f"no device work: on the host {top.name} takes most, {top.host_self_ns / 1e6:.3g} ms"


def _ms(window: Window) -> str:
    return f"{window.ns / 1e6:,.1f} ms" if window.ns < 1e10 else f"{window.ns / 1e9:,.1f} s"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

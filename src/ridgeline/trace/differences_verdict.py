"""Two traces compared, in one sentence: by how much a step changed, and what changed it."""

from collections.abc import Sequence

from ridgeline import units
from ridgeline.records.trace import Difference

SAME = 0.01
"""Changes below this share of a step are called none: two steps of one trace differ by more."""
_MOST_PARTS = 2
_CAUSES = {
    "input": "input wait",
    "transfer": "waiting for transfers",
    "launch-bound": "launch-bound idling",
    "allocator": "waiting for the allocator",
    "compile": "compilation",
    "other host": "other host time",
    "between kernels": "gaps between kernels",
    "unknown": "unexplained idling",
}


def verdict(
    per: str,
    before_ns: float,
    after_ns: float,
    rows: Sequence[Difference],
    devices_before: int = 1,
    devices_after: int = 1,
) -> str:
    change = after_ns - before_ns
    what = "a step" if per == "step" else "the trace"
    small = SAME * max(before_ns, after_ns)
    if abs(change) < small or not change:
        said = f"{what} takes the same time ({_time(after_ns)})"
    else:
        share = f" ({_percent(change / before_ns)})" if before_ns > 0 else ""
        said = f"{what} takes {_more(change)}{share}"
    parts = _parts(rows, max(small, 0.1 * abs(change)), devices_before, devices_after)
    return f"{said}: {'; '.join(parts)}" if parts else said


def not_comparable(with_device: str) -> str:
    """No speed-up is told between a device's time and the host's."""
    return (
        f"these cannot be compared as device time: only the trace {with_device} has device work; "
        "below is the host's time alone"
    )


def _parts(
    rows: Sequence[Difference], least: float, devices_before: int, devices_after: int
) -> list[str]:
    """Idle causes that changed, then the device's own work; the host's work without a device."""
    causes = [
        (r.after_ns / devices_after - r.before_ns / devices_before, _CAUSES.get(r.name, r.name))
        for r in rows
        if r.of == "cause"
    ]
    causes.sort(key=lambda part: -abs(part[0]))
    each = " a device" if max(devices_before, devices_after) > 1 else ""
    parts = [f"{name} {_more(ns)}{each}" for ns, name in causes if abs(ns) >= least][:_MOST_PARTS]
    busy = next((r for r in rows if r.of == "total" and r.name == "busy"), None)
    if busy is None:
        ops = [r for r in rows if r.of == "op" and abs(r.change_ns) >= least]
        top = sorted(ops, key=lambda r: -abs(r.change_ns))
        return parts + [f"{r.name} {_more(r.change_ns)}" for r in top[:_MOST_PARTS]]
    if abs(busy.change_ns) < max(least, SAME * max(busy.before_ns, busy.after_ns)):
        return [*parts, "kernels equal"]
    kinds = [r for r in rows if r.of == "category" and r.change_ns * busy.change_ns > 0]
    top = sorted(kinds, key=lambda r: -abs(r.change_ns))[:1]
    return [
        *parts,
        f"kernels {_more(busy.change_ns)}" + "".join(f", most in {r.name}" for r in top),
    ]


def _more(ns: float) -> str:
    return f"{_time(abs(ns))} {'less' if ns < 0 else 'more'}"


def _time(ns: float) -> str:
    return units.seconds(ns / 1e9)


def _percent(share: float) -> str:
    return f"{'+' if share > 0 else ''}{units.percent(share)}"

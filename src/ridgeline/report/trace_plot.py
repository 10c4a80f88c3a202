"""Pictures of a trace: the split of its time, the gaps along it, memory, the roofline."""

from collections.abc import Iterator
from math import ceil, floor, log10

from msgspec import Struct

from ridgeline import units
from ridgeline.records.trace import MemoryCurve, Roofline, RooflineRow, TraceStudy
from ridgeline.report import svg
from ridgeline.report.names import kernel_name, place_name
from ridgeline.report.plain import printable, shorten
from ridgeline.report.trace_grid import share, time
from ridgeline.report.trace_headline import Part, parts

WIDTH = 960.0
MOST_GAPS, MOST_DOTS = 200, 300
"""More would lie on each other, and each is 200 bytes of the page with its tip."""
LEAST_MEMORY = 1 << 20
"""A curve of bytes, as the CPU's often is, is no picture."""
CAUSES = (
    "busy", "input", "synchronisation", "transfer", "launch-bound", "allocator", "compile",
    "collective wait", "garbage collection", "other host", "between kernels", "unknown",
)  # fmt: skip
_COLOURS = ("#2e9e5b", "#d1495b", "#8e5bb5", "#2f7ed8", "#e0a030", "#17a2b8", "#5661b3",
            "#c2569b", "#a04000", "#b8860b", "#9aa5b1", "#6b7680")  # fmt: skip
STYLE = "".join(
    f"svg .{name.replace(' ', '-')} {{ fill: {colour}; }}"
    for name, colour in zip(CAUSES, _COLOURS, strict=True)
) + (
    "svg .curve { fill: none; stroke: var(--blue); stroke-width: 1.5; }"
    "svg .reserved { fill: none; stroke: var(--soft); stroke-dasharray: 4 3; }"
    "svg .roof { fill: none; stroke: var(--ink); stroke-width: 1.5; }"
    "svg .compute { fill: var(--blue); opacity: .75; }"
    "svg .memory { fill: var(--unsure); opacity: .75; }"
)


class Scale(Struct, frozen=True, kw_only=True):
    """A frame with two logarithmic axes, given by the powers of ten at its edges."""

    frame: svg.Frame
    left: float
    right: float
    low: float
    high: float

    def at(self, intensity: float, rate: float) -> tuple[float, float]:
        x = (log10(intensity) - self.left) / (self.right - self.left)
        y = (log10(rate) - self.low) / (self.high - self.low)
        return self.frame.x(x), self.frame.y(y)


def split(study: TraceStudy) -> str:
    """One bar, the whole window of all devices, with a legend."""
    found = parts(study)
    total = sum(p.ns for p in found)
    if not total:
        return ""
    drawn: list[str] = []
    x = 0.0
    for part in found:
        wide = WIDTH * part.ns / total
        drawn.append(svg.box(x, 4, wide, 34, _kind(part.name), f"{part.name} {time(part.ns)}"))
        x += wide
    legend, bottom = _legend(found, total)
    described = "; ".join(f"{p.name} {share(p.ns / total)}" for p in found)
    return svg.drawing(WIDTH, bottom, "Busy and idle by cause", described, [*drawn, *legend])


def _legend(found: tuple[Part, ...], total: int) -> tuple[list[str], float]:
    drawn, x, y = [], 0.0, 60.0
    for part in found:
        words = f"{part.name} {share(part.ns / total)} · {time(part.ns)}"
        wide = 28 + 7.0 * len(words)
        if x + wide > WIDTH:
            x, y = 0.0, y + 20
        drawn += [svg.box(x, y - 10, 11, 11, _kind(part.name)), svg.text(x + 16, y, words)]
        x += wide
    return drawn, y + 10


def gaps(study: TraceStudy) -> str:
    """A strip a device, the window from left to right, the longest gaps where they were."""
    window = study.window
    strips = [d for d in study.devices[:16] if d.busy_ns is not None]
    ranks = {d.rank for d in study.devices}
    if not study.idle.top or window.ns <= 0 or not strips or len(ranks) > 1:
        return ""  # of several ranks a gap does not say whose it is
    drawn: list[str] = []
    for i, device in enumerate(strips):
        top = 6 + 34.0 * i
        drawn.append(svg.text(0, top + 17, f"device {device.device}", kind="tick"))
        frame = svg.Frame(left=110, right=WIDTH, top=top, bottom=top + 26)
        drawn.append(svg.box(frame.left, top, frame.right - frame.left, 26, "busy"))
        for g in study.idle.top[:MOST_GAPS]:
            if g.device == device.device:
                left = frame.x(max((g.start_ns - window.start_ns) / window.ns, 0.0))
                wide = max((frame.right - frame.left) * g.dur_ns / window.ns, 0.4)
                tip = (
                    f"{g.cause} {time(g.dur_ns)}, then {kernel_name(g.after)} {place_name(g.place)}"
                )
                drawn.append(svg.box(left, top, wide, 26, _kind(g.cause), tip.strip()))
    bottom = 6 + 34.0 * len(strips)
    drawn += [svg.text(110, bottom + 12, "0", kind="tick"),
              svg.text(WIDTH, bottom + 12, time(window.ns), "end", "tick")]  # fmt: skip
    drawn_gaps = min(len(study.idle.top), MOST_GAPS)
    described = f"{drawn_gaps} longest gaps of {study.idle.gaps:,}"
    return svg.drawing(WIDTH, bottom + 20, "Gaps along the window", described, drawn)


def memory(curve: MemoryCurve) -> str:
    points = curve.points
    if curve.peak_bytes < LEAST_MEMORY or len(points) < 2 or points[-1][0] <= points[0][0]:
        return ""
    frame = svg.Frame(left=80, right=WIDTH - 10, top=10, bottom=180)
    first, last = points[0][0], points[-1][0]
    highest = max(max(p[1], p[2]) for p in points) or 1
    lowest = min(0, *(p[1] for p in points))
    spread = (highest - lowest) or 1

    def at(ns: int, size: int) -> tuple[float, float]:
        return frame.x((ns - first) / (last - first)), frame.y((size - lowest) / spread)

    drawn = []
    for height in (0.0, 0.5, 1.0):
        y = frame.y(height)
        drawn.append(svg.line(frame.left, y, frame.right, y, "grid"))
        label = units.bytes_(lowest + height * spread)
        drawn.append(svg.text(frame.left - 8, y + 4, label, "end", "tick"))
    drawn.append(svg.track((at(ns, held) for ns, _, held in points if held >= 0), "reserved"))
    drawn.append(svg.track(_stairs([at(ns, used) for ns, used, _ in points]), "curve"))
    x, y = at(curve.peak_ns, curve.peak_bytes)
    drawn.append(svg.dot(min(max(x, frame.left), frame.right), y, 3.5, "beyond",
                         f"peak {units.bytes_(curve.peak_bytes)}"))  # fmt: skip
    drawn.append(svg.text(frame.right, frame.bottom + 16, time(last - first), "end", "tick"))
    described = f"peak {units.bytes_(curve.peak_bytes)}; dashed: reserved"
    return svg.drawing(WIDTH, 205, printable(f"Memory of {curve.device}"), described, drawn)


def _stairs(points: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """A size holds until the next one."""
    height = points[0][1]
    for x, y in points:
        if y != height:
            yield x, height
        yield x, y
        height = y


def roofline(found: Roofline) -> str:
    """Rate over intensity, both logarithmic; the roof from the rows' own ceilings."""
    rows = [r for r in found.rows if r.intensity > 0 and r.flops_s > 0][:MOST_DOTS]
    peaks = [r.ceiling for r in rows if r.bound == "compute" and r.ceiling]
    slopes = [r.ceiling for r in rows if r.bound == "memory" and r.ceiling]
    if not rows:
        return ""
    intensities = [r.intensity for r in rows]
    tops = [r.flops_s for r in rows] + peaks
    left, right = log10(min(intensities)) - 0.3, log10(max(intensities)) + 0.5
    low, high = log10(min(r.flops_s for r in rows)) - 0.3, log10(max(tops)) + 0.2
    frame = svg.Frame(left=100, right=WIDTH - 10, top=10, bottom=260)
    scale = Scale(frame=frame, left=left, right=right, low=low, high=high)
    drawn = _axes(scale)
    slope = max(slopes, default=0.0)
    roofs = sorted(set(peaks), reverse=True)[:3] or ([10**high] if slope else [])
    drawn += [svg.track(_roof(peak, slope, scale), "roof") for peak in roofs]
    drawn += [_mark(r, *scale.at(r.intensity, r.flops_s)) for r in rows]
    described = f"{len(rows)} operators; blue bound by arithmetic, yellow by memory"
    return svg.drawing(WIDTH, 300, "Roofline", described, drawn)


def _mark(r: RooflineRow, x: float, y: float) -> str:
    size = 3 + 9 * min(max(r.share, 0.0), 1.0) ** 0.5
    tip = f"{printable(r.op)} {shorten(printable(r.shape), 60)}: {units.flops(r.flops_s)}"
    return svg.dot(x, y, round(size, 1), r.bound or "point", tip)


def _roof(peak: float, slope: float, scale: Scale) -> list[tuple[float, float]]:
    """The line under which all rates lie: bytes' slope, then the flat of arithmetic."""
    ends = (scale.left, scale.right)
    edges = [10 ** ends[0], 10 ** ends[1]]
    if slope:
        start = max(edges[0], 10**scale.low / slope)
        edges = [start, *([peak / slope] if start < peak / slope < edges[1] else []), edges[1]]
    return [scale.at(i, min(peak, i * slope) if slope else peak) for i in edges]


def _axes(scale: Scale) -> list[str]:
    frame = scale.frame
    drawn = [svg.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis")]
    for power in range(ceil(scale.low), floor(scale.high) + 1):
        y = scale.at(10**scale.left, 10.0**power)[1]
        drawn.append(svg.line(frame.left, y, frame.right, y, "grid"))
        drawn.append(svg.text(frame.left - 8, y + 4, units.flops(10.0**power), "end", "tick"))
    for power in range(ceil(scale.left), floor(scale.right) + 1):
        x = scale.at(10.0**power, 10**scale.low)[0]
        label = units.significant(10.0**power)
        drawn.append(svg.text(x, frame.bottom + 16, label, "middle", "tick"))
    drawn.append(svg.text(frame.x(0.5), frame.bottom + 34, "FLOP/byte", "middle", "title"))
    return drawn


def _kind(name: str) -> str:
    return name.replace(" ", "-") if name in CAUSES else "unknown"

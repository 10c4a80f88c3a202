"""Charts as inline SVG, coloured by the page they stand in."""

import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from msgspec import Struct
from rich.cells import cell_len

from ridgeline import units
from ridgeline.report.document import (
    CurveChart,
    ForestChart,
    IntervalMark,
    RooflineChart,
    RooflineMark,
    RoundsChart,
    SamplesChart,
    SampleStrip,
    SplitChart,
    TimelineChart,
    WaterfallChart,
    WaterfallLevel,
)
from ridgeline.report.numbers import Axis, axis, tick_label, ticks
from ridgeline.report.plain import ELLIPSIS, printable
from ridgeline.report.renderers import svg
from ridgeline.report.renderers.terminal_charts import shorten_start
from ridgeline.units import plural

WIDTH = 760.0
WIDE = 960.0
_NAMES, _FIGURES, _EDGE = 170.0, 150.0, 14.0
_ROW = 26.0
MAX_NAME_LETTERS = 21
KINDS = (
    "busy", "input", "synchronisation", "transfer", "launch-bound", "allocator", "compile",
    "collective wait", "garbage collection", "other host", "between kernels", "unknown",
    "forward", "backward", "optimizer", "evaluation", "other",
)  # fmt: skip
"""Causes of idle time, and phases of a step, that have a colour in the page's style."""
_UNNAMED = ("idle", "not explained")
"""Parts of a whole that are grey, because nothing is known of them."""


def draw(chart: Any) -> str:
    """Return the chart as SVG; "" where there is nothing to draw."""
    return str(_DRAWINGS[type(chart)](chart))


def _seconds(ns: float) -> str:
    return units.seconds(ns / 1e9)


def _is_positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def forest(chart: ForestChart) -> str:
    """Draw each interval on one axis, with the band that does not matter shaded."""
    if not chart.marks:
        return ""
    scale = axis([(m.low, m.value, m.high) for m in chart.marks], chart.band)
    bottom = 10 + _ROW * len(chart.marks)
    frame = svg.Frame(left=_NAMES, right=WIDTH - _FIGURES, top=6, bottom=bottom)
    parts = [*_band(scale, frame, chart.band), *_ratio_axis(scale, frame, "× baseline, log scale")]
    for i, mark in enumerate(chart.marks):
        parts += _interval(scale, frame, 10 + _ROW * (i + 0.5), mark)
    described = "; ".join(f"{m.name} {m.figure}" for m in chart.marks)
    described += f". Shaded: within {_share(chart.band)} of 1."
    return svg.drawing(WIDTH, bottom + 40, chart.title, described, parts)


def _share(value: float) -> str:
    return f"{units.significant(100 * value, 2)} %"


def _interval(scale: Axis, frame: svg.Frame, y: float, mark: IntervalMark) -> list[str]:
    kind = f"whisker {mark.tone}"
    low, middle, high = (frame.x(scale.place(v)) for v in (mark.low, mark.value, mark.high))
    name = shorten_start(mark.name, MAX_NAME_LETTERS)
    parts = [
        svg.text(frame.left - 12, y + 4, name, "end", "name"),
        svg.line(low, y, high, y, kind),
        svg.dot(middle, y, 4.5, f"point {mark.tone}", f"{mark.name}: {mark.figure}"),
        svg.text(frame.right + 12, y + 4, mark.figure, "start", "figure"),
    ]
    # An end that is off the axis has no cap: the line runs out of the picture.
    if mark.low >= scale.low:
        parts.append(svg.line(low, y - 5, low, y + 5, kind))
    if mark.high <= scale.high:
        parts.append(svg.line(high, y - 5, high, y + 5, kind))
    return parts


def _band(scale: Axis, frame: svg.Frame, around: float) -> list[str]:
    left, right = (frame.x(scale.place(v)) for v in (1 / (1 + around), 1 + around))
    height = frame.bottom - frame.top
    tip = f"within {_share(around)} of 1"
    return [svg.box(left, frame.top, right - left, height, "band", tip)]


def _ratio_axis(scale: Axis, frame: svg.Frame, title: str) -> list[str]:
    parts = [svg.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis")]
    for tick in scale.ticks:
        x = frame.x(scale.place(tick))
        parts.append(svg.line(x, frame.top, x, frame.bottom, "one" if tick == 1 else "grid"))
        parts.append(svg.text(x, frame.bottom + 15, tick_label(tick), "middle", "tick"))
    below = frame.bottom + 32
    parts.append(svg.text(frame.x(0.5), below, title, "middle", "title"))
    parts.append(svg.text(frame.left, below, "← slower", "start", "title"))
    parts.append(svg.text(frame.right, below, "faster →", "end", "title"))
    return parts


class Range(Struct, frozen=True):
    """The drawn range of a set of numbers: Tukey's outer fences at most, so that one stall of a
    second does not flatten all the rest. Numbers beyond are marked at the edge."""

    low: float
    high: float

    def place(self, value: float) -> float:
        return (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)


def fenced(values: Sequence[float]) -> Range:
    ordered = sorted(values)
    lower, upper = (ordered[round(q * (len(ordered) - 1))] for q in (0.25, 0.75))
    reach = 3 * (upper - lower)
    low, high = max(ordered[0], lower - reach), min(ordered[-1], upper + reach)
    air = 0.08 * (high - low) or 0.01 * abs(high) or 1.0
    return Range(low - air, high + air)


def samples(chart: SamplesChart) -> str:
    """Draw a strip for each variant: drift and stalls are seen in any of them."""
    strips = [s for s in chart.strips if any(_is_positive(v) for v in s.samples_ns)]
    if not strips:
        return ""
    height, gap = 84.0, 20.0
    rounds = max(len(strip.samples_ns) for strip in strips)
    parts: list[str] = []
    for i, strip in enumerate(strips):
        top = 10 + i * (height + gap)
        frame = svg.Frame(left=_NAMES + 60, right=WIDTH - _EDGE, top=top, bottom=top + height)
        parts += _strip(frame, strip, rounds)
    bottom = 10 + len(strips) * (height + gap) - gap
    frame = svg.Frame(left=_NAMES + 60, right=WIDTH - _EDGE, top=10, bottom=bottom)
    parts += _round_axis(frame, rounds)
    medians = "; ".join(f"{s.name} median {_seconds(s.median_ns)}" for s in strips)
    described = f"{medians}. {plural(rounds, 'round')}; each strip has its own scale."
    return svg.drawing(WIDTH, bottom + 40, chart.title, described, parts)


def _strip(frame: svg.Frame, strip: SampleStrip, rounds: int) -> list[str]:
    known = [(i, v) for i, v in enumerate(strip.samples_ns) if _is_positive(v)]
    scale = fenced([v for _, v in known])
    kind = "baseline" if strip.is_baseline else "candidate"

    def at(i: int, value: float) -> tuple[float, float]:
        return frame.x((i + 0.5) / rounds), frame.y(scale.place(value))

    inside = [(i, v) for i, v in known if scale.low <= v <= scale.high]
    beyond = [(i, v) for i, v in known if not scale.low <= v <= scale.high]
    middle = frame.y(scale.place(strip.median_ns))
    parts = [
        svg.box(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top, "pane"),
        svg.text(0, frame.top + 14, shorten_start(strip.name, MAX_NAME_LETTERS), "start", "name"),
        svg.text(0, frame.top + 31, f"median {_seconds(strip.median_ns)}", "start", "tick"),
        svg.line(frame.left, middle, frame.right, middle, "median"),
        svg.track((at(i, v) for i, v in inside), f"track {kind}"),
        svg.dots((at(i, v) for i, v in inside), f"dots {kind}"),
    ]
    for value in (scale.low, (scale.low + scale.high) / 2, scale.high):
        y = frame.y(scale.place(value))
        parts.append(svg.text(frame.left - 8, y + 4, _seconds(value), "end", "tick"))
    for i, value in beyond:
        up = value > scale.high
        y = frame.top + 8 if up else frame.bottom - 8
        tip = f"round {i + 1}: {_seconds(value)}"
        parts.append(svg.arrow(at(i, value)[0], y, up, "beyond", tip))
    if beyond:
        worst = max(v for _, v in beyond)
        words = f"{len(beyond)} off the scale (▲)"
        parts.append(svg.text(0, frame.top + 47, words, "start", "tick"))
        parts.append(svg.text(0, frame.top + 63, f"up to {_seconds(worst)}", "start", "tick"))
    return parts


def _round_axis(frame: svg.Frame, rounds: int) -> list[str]:
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, rounds) if rounds / s <= 9)
    parts = [
        svg.text(frame.x((i - 0.5) / rounds), frame.bottom + 15, f"{i:,}", "middle", "tick")
        for i in (1, *range(step, rounds + 1, step))
        if i == 1 or i > max(1, step // 2)
    ]
    return [*parts, svg.text(frame.x(0.5), frame.bottom + 32, "round", "middle", "title")]


def rounds_histogram(chart: RoundsChart) -> str:
    """Draw how many rounds had which ratio, with the interval of the estimate above."""
    logs = chart.log_ratios
    if len(logs) < 2:
        return ""
    scale = _ratio_scale(chart)
    counts, below, above = _binned(logs, scale)
    frame = svg.Frame(left=_NAMES, right=WIDTH - _FIGURES, top=30, bottom=140)
    parts = [
        *_band(scale, frame, chart.band),
        *_ratio_axis(scale, frame, "× baseline in one round"),
    ]
    parts += _bars(frame, counts, scale)
    parts += _interval(scale, frame, 16, chart.mark)
    if below:
        parts.append(svg.text(frame.left - 8, frame.y(0.2), f"{below} farther ←", "end", "tick"))
    if above:
        parts.append(svg.text(frame.right + 8, frame.y(0.2), f"→ {above} farther", "start", "tick"))
    described = (
        f"{plural(len(logs), 'round')}; the estimate is {chart.mark.figure}; "
        f"{below} below and {above} above what is drawn."
    )
    return svg.drawing(WIDTH, 180, chart.title, described, parts)


def _binned(logs: Sequence[float], scale: Axis) -> tuple[list[int], int, int]:
    """Return the counts over the axis, and how many lie below and above it. Bins are as wide as
    they would be over the rounds alone (2 √n of them), however much of the axis is there to show
    1."""
    low, high = math.log(scale.low), math.log(scale.high)
    fences = fenced(logs)
    wanted = 2 * math.sqrt(len(logs)) * (high - low) / (fences.high - fences.low)
    bins = min(max(round(wanted), 8), 100)
    counts = [0] * bins
    for value in logs:
        if low <= value <= high:
            counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
    return counts, sum(v < low for v in logs), sum(v > high for v in logs)


def _bars(frame: svg.Frame, counts: Sequence[int], scale: Axis) -> list[str]:
    most, wide = max(*counts, 1), 1 / len(counts)
    parts = []
    for i, number in enumerate(counts):
        left, right = (frame.x(share) for share in (i * wide, (i + 1) * wide))
        low, high = (
            scale.low * (scale.high / scale.low) ** share for share in (i * wide, (i + 1) * wide)
        )
        top = frame.y(0.92 * number / most)
        tip = f"{low:.3g} to {high:.3g}: {plural(number, 'round')}"
        if number:
            parts.append(svg.box(left + 0.5, top, right - left - 1, frame.bottom - top, "bar", tip))
    top = frame.y(0.92)
    parts.append(svg.text(frame.left - 8, top + 4, f"{most:,}", "end", "tick"))
    parts.append(svg.text(frame.left - 8, frame.bottom + 4, "0", "end", "tick"))
    parts.append(svg.text(frame.left - 8, frame.y(0.5) + 4, "rounds", "end", "title"))
    return parts


def _ratio_scale(chart: RoundsChart) -> Axis:
    """Return an axis around the rounds and the interval; around 1 and its band too, unless they are
    so far away that the histogram would shrink to a third."""
    fences = fenced(chart.log_ratios)
    ends = [math.log(v) for v in (chart.mark.low, chart.mark.high) if _is_positive(v)]
    low, high = min([fences.low, *ends]), max([fences.high, *ends])
    air, reach = 0.03 * (high - low), math.log(1 + chart.band)
    low, high = low - air, high + air
    wide_low, wide_high = min(low, -1.2 * reach), max(high, 1.2 * reach)
    if wide_high - wide_low < 3 * (high - low):
        low, high = wide_low, wide_high
    low, high = math.exp(low), math.exp(high)
    return Axis(low=low, high=high, ticks=ticks(low, high, 7))


def split(chart: SplitChart) -> str:
    """Draw one bar, the whole, with a legend."""
    total = sum(part.value for part in chart.parts)
    if not total:
        return ""
    drawn: list[str] = []
    legend: list[str] = []
    x, legend_x, y = 0.0, 0.0, 60.0
    has_kinds = all(part.name in (*KINDS, *_UNNAMED) for part in chart.parts)
    for i, part in enumerate(chart.parts):
        kind = _kind(part.name) if has_kinds else f"c{i % 8 + 1}"
        wide = WIDE * part.value / total
        words = f"{part.name} {part.figure}"
        drawn.append(svg.box(x, 4, wide, 34, kind, words))
        x += wide
        room = 28 + 7.0 * len(words)
        if legend_x + room > WIDE:
            legend_x, y = 0.0, y + 20
        legend.append(svg.box(legend_x, y - 10, 11, 11, kind))
        legend.append(svg.text(legend_x + 16, y, words))
        legend_x += room
    described = "; ".join(f"{part.name} {part.figure}" for part in chart.parts)
    return svg.drawing(WIDE, y + 10, chart.title, described, [*drawn, *legend])


def timeline(chart: TimelineChart) -> str:
    """Draw a strip for each device, the window from left to right."""
    drawn: list[str] = []
    for i, (name, spans) in enumerate(chart.strips):
        top = 6 + 34.0 * i
        drawn.append(svg.text(0, top + 17, name, kind="tick"))
        frame = svg.Frame(left=110, right=WIDE, top=top, bottom=top + 26)
        width = frame.right - frame.left
        drawn.append(svg.box(frame.left, top, width, 26, "busy"))
        drawn += [
            svg.box(frame.x(span.start), top, max(width * span.length, 0.4), 26, _kind(span.kind),
                    span.tip)
            for span in spans
        ]  # fmt: skip
    bottom = 6 + 34.0 * len(chart.strips)
    drawn += [svg.text(110, bottom + 12, "0", kind="tick"),
              svg.text(WIDE, bottom + 12, chart.window, "end", "tick")]  # fmt: skip
    return svg.drawing(WIDE, bottom + 20, chart.title, chart.described, drawn)


def _kind(name: str) -> str:
    return name.replace(" ", "-") if name in KINDS else "unknown"


def curve(chart: CurveChart) -> str:
    points = chart.points
    frame = svg.Frame(left=80, right=WIDE - 10, top=10, bottom=180)
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
    x, y = at(*chart.peak)
    peak = f"peak {units.bytes_(chart.peak[1])}"
    drawn.append(svg.dot(min(max(x, frame.left), frame.right), y, 3.5, "beyond", peak))
    drawn.append(svg.text(frame.right, frame.bottom + 16, _seconds(last - first), "end", "tick"))
    return svg.drawing(WIDE, 205, chart.title, f"{peak}; dashed: reserved", drawn)


def _stairs(points: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """A size holds until the next one."""
    height = points[0][1]
    for x, y in points:
        if y != height:
            yield x, height
        yield x, y
        height = y


class _RooflineScale(Struct, frozen=True, kw_only=True):
    """A frame with two logarithmic axes, given by the powers of ten at its edges."""

    frame: svg.Frame
    left: float
    right: float
    low: float
    high: float

    def at(self, intensity: float, rate: float) -> tuple[float, float]:
        x = (math.log10(intensity) - self.left) / (self.right - self.left)
        y = (math.log10(rate) - self.low) / (self.high - self.low)
        return self.frame.x(x), self.frame.y(y)


def roofline(chart: RooflineChart) -> str:
    marks = [m for m in chart.marks if m.intensity > 0 and m.flops_per_s > 0]
    if not marks:
        return ""
    intensities = [m.intensity for m in marks]
    rates = [m.flops_per_s for m in marks]
    left, right = math.log10(min(intensities)) - 0.3, math.log10(max(intensities)) + 0.5
    low, high = math.log10(min(rates)) - 0.3, math.log10(max([*rates, *chart.peaks])) + 0.2
    frame = svg.Frame(left=100, right=WIDE - 10, top=10, bottom=260)
    scale = _RooflineScale(frame=frame, left=left, right=right, low=low, high=high)
    drawn = _roofline_axes(scale)
    roofs = chart.peaks or ((10**high,) if chart.bandwidth else ())
    drawn += [svg.track(_roof(peak, chart.bandwidth, scale), "roof") for peak in roofs]
    drawn += [_roofline_mark(m, *scale.at(m.intensity, m.flops_per_s)) for m in marks]
    described = f"{len(marks)} operators; blue bound by arithmetic, yellow by memory"
    return svg.drawing(WIDE, 300, "Roofline", described, drawn)


def _roofline_mark(mark: RooflineMark, x: float, y: float) -> str:
    size = 3 + 9 * min(max(mark.share, 0.0), 1.0) ** 0.5
    return svg.dot(x, y, round(size, 1), mark.kind or "point", mark.tip)


def _roof(peak: float, slope: float, scale: _RooflineScale) -> list[tuple[float, float]]:
    """Return the line under which all rates lie: the slope of memory, then the flat of
    arithmetic."""
    edges = [10**scale.left, 10**scale.right]
    if slope:
        start = max(edges[0], 10**scale.low / slope)
        edges = [start, *([peak / slope] if start < peak / slope < edges[1] else []), edges[1]]
    return [scale.at(i, min(peak, i * slope) if slope else peak) for i in edges]


def _roofline_axes(scale: _RooflineScale) -> list[str]:
    frame = scale.frame
    drawn = [svg.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis")]
    for power in range(math.ceil(scale.low), math.floor(scale.high) + 1):
        y = scale.at(10**scale.left, 10.0**power)[1]
        drawn.append(svg.line(frame.left, y, frame.right, y, "grid"))
        drawn.append(svg.text(frame.left - 8, y + 4, units.flops(10.0**power), "end", "tick"))
    for power in range(math.ceil(scale.left), math.floor(scale.right) + 1):
        x = scale.at(10.0**power, 10**scale.low)[0]
        label = units.significant(10.0**power)
        drawn.append(svg.text(x, frame.bottom + 16, label, "middle", "tick"))
    drawn.append(svg.text(frame.x(0.5), frame.bottom + 34, "FLOP/byte", "middle", "title"))
    return drawn


_LEFT, _RIGHT = 272.0, 668.0
"""The edges of a waterfall's frame; names stand left of it, figures right."""
_WATERFALL_WIDTH, _MARGIN = 880.0, 16.0
_LEVEL_HEIGHT, _BAR = 40.0, 18.0
_LETTERS = 38
"""Letters of a line of a name: 240 points at 6.3 a letter of 12-point type."""
_WHOLE_LETTERS = 88
"""Letters of a line over the whole width, in 16-point type."""
_BROAD = re.compile(r"[A-Zmw@%&—…]")
"""Letters half as wide again."""
_BELOW_HEADING = 76.0
_HEADROOM = 1.04
WATERFALL_STYLE = """
.ladder { --paper: #fff; --ink: #1b2126; --soft: #5a6570; --rule: #e1e6ea; --shade: #e9edf1;
  --good: #2e9f4f; --bad: #d2453d; --gone: #c3a45c; --base: #8296ab; --end: #0b62c4; }
@media (prefers-color-scheme: dark) { .ladder { --paper: #14181c; --ink: #e4e8ec; --soft: #9ba7b2;
  --rule: #2c343b; --shade: #262e36; --good: #3fb45f; --bad: #ff7b72; --gone: #8f7a41;
  --base: #5c7188; --end: #6cb3ff; } }
.ladder text { font: 12px system-ui, sans-serif; fill: var(--ink);
  font-variant-numeric: tabular-nums; }
.ladder .answer { font-size: 16px; font-weight: 600; }
.ladder .head { font-size: 14px; font-weight: 600; } .ladder .bold { font-weight: 600; }
.ladder .small { font-size: 11px; fill: var(--soft); }
.ladder .paper { fill: var(--paper); } .ladder .rest { fill: var(--shade); }
.ladder .base { fill: var(--base); } .ladder .gain { fill: var(--good); }
.ladder .gone { fill: var(--gone); } .ladder .lost { fill: var(--bad); }
.ladder .end { fill: var(--end); } .ladder .rule { stroke: var(--rule); }
.ladder .one { stroke: var(--soft); } .ladder .join { stroke: var(--soft); stroke-dasharray: 2 3; }
.ladder .span { stroke: var(--ink); stroke-width: 1.5; }
"""
_BAR_KINDS = {"good": "gain", "bad": "lost"}


def waterfall(chart: WaterfallChart, *, headed: bool = False) -> str:
    """Draw a ladder. `headed`: with the answer above it, for a picture that stands alone; without
    it, and where nothing was measured, return ""."""
    levels, bars = chart.levels, chart.bars
    if not levels and not bars and not headed:
        return ""
    parts, bottom = _waterfall_heading(chart) if headed else ([], 14.0)
    if levels:
        drawn, bottom = _level_panel(chart, bottom)
        parts += drawn
    if bars:
        drawn, bottom = _ratio_panel(chart.bars_title, bars, bottom + (26 if levels else 0))
        parts += drawn
    for text in chart.foot if levels or bars else ["Nothing was measured."]:
        bottom += 18
        parts.append(svg.text(_MARGIN, bottom, text, "start", "small"))
    height = bottom + 14
    paper = svg.box(0, 0, _WATERFALL_WIDTH, height, "paper")
    inside = f"<title>{escape(printable(chart.title))}</title><style>{WATERFALL_STYLE}</style>"
    body = f'{inside}<g class="ladder">{paper}{"".join(parts)}</g>'
    return svg.drawing(_WATERFALL_WIDTH, height, chart.title, _waterfall_words(chart), [body])


def _waterfall_heading(chart: WaterfallChart) -> tuple[list[str], float]:
    """Return the heading and where the drawing below it begins. An answer takes two lines rather
    than lose the figures at its end."""
    lines = _folded(chart.title, _WHOLE_LETTERS)
    parts = [
        svg.text(_MARGIN, 30 + 20 * i, line, "start", "answer") for i, line in enumerate(lines)
    ]
    below = 20.0 * (len(lines) - 1)
    about = _cut(printable(chart.about), _WHOLE_LETTERS)
    parts.append(svg.text(_MARGIN, 50 + below, about, "start", "small"))
    return parts, _BELOW_HEADING + below


def _level_panel(chart: WaterfallChart, top: float) -> tuple[list[str], float]:
    levels = chart.levels
    most = max(max(level.value, level.before) for level in levels) * _HEADROOM
    first = top + 22
    bottom = first + _LEVEL_HEIGHT * len(levels)
    frame = svg.Frame(left=_LEFT, right=_RIGHT, top=first, bottom=bottom)
    head = f"{chart.axis_title[:1].upper()}{chart.axis_title[1:]}"
    parts = [svg.text(_MARGIN, top + 8, head, kind="head"), *_ticks(frame, most, chart.unit)]
    for i, level in enumerate(levels):
        middle = first + _LEVEL_HEIGHT * (i + 0.5)
        parts += _names(middle, level.title, level.kind in ("base", "end"))
        parts += _figure_texts(middle, level.figure, level.note)
        parts += _level(frame, middle, level, most)
        if i + 1 < len(levels):
            x = frame.x(level.value / most)
            below = middle + _LEVEL_HEIGHT - _BAR / 2
            parts.append(svg.line(x, middle + _BAR / 2, x, below, "join"))
    return parts, bottom + 30


def _level(frame: svg.Frame, middle: float, level: WaterfallLevel, most: float) -> list[str]:
    top = middle - _BAR / 2
    ground, before, value = (frame.x(v / most) for v in (0.0, level.before, level.value))
    tip = f"{level.title}: {level.figure} {level.note}".strip()
    if level.before:
        left, right = min(before, value), max(before, value)
        parts = [svg.box(ground, top, left - ground, _BAR, "rest", tip)]
        # A drop too small to be seen is still a line.
        parts.append(svg.box(left, top, max(right - left, 1.5), _BAR, level.kind, tip))
    else:
        parts = [svg.box(ground, top, value - ground, _BAR, level.kind, tip)]
    if level.low is not None and level.high is not None:
        ends = [min(end / most, 1.0) for end in (level.low, level.high)]
        parts += _whisker(frame.x(ends[0]), frame.x(ends[1]), middle, level.high <= most)
    return parts


def _whisker(left: float, right: float, middle: float, capped: bool = True) -> list[str]:
    """Draw an interval; an end outside the picture has no cap."""
    parts = [svg.line(left, middle, right, middle, "span")]
    parts.append(svg.line(left, middle - 5, left, middle + 5, "span"))
    return [*parts, svg.line(right, middle - 5, right, middle + 5, "span")] if capped else parts


def _ticks(frame: svg.Frame, most: float, unit: str) -> list[str]:
    rough = most / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * n for n in (1, 2, 5, 10) if size * n >= rough)
    parts = []
    for i in range(int(most / step) + 1):
        x = frame.x(i * step / most)
        words = f"{tick_label(i * step)} {unit}".rstrip() if i else "0"
        parts.append(svg.line(x, frame.top, x, frame.bottom, "rule"))
        parts.append(svg.text(x, frame.bottom + 15, words, "middle", "small"))
    return parts


def _ratio_panel(
    head: str, bars: Sequence[IntervalMark], top: float
) -> tuple[list[str], float]:  # fmt: skip
    spans = [
        (b.low if _is_positive(b.low) else b.value, b.value,
         b.high if _is_positive(b.high) else b.value)
        for b in bars
    ]  # fmt: skip
    scale = axis(spans, 0.0)
    first = top + 22
    bottom = first + _LEVEL_HEIGHT * len(bars)
    frame = svg.Frame(left=_LEFT, right=_RIGHT, top=first, bottom=bottom)
    parts = [svg.text(_MARGIN, top + 8, head, kind="head")]
    for tick in scale.ticks:
        x = frame.x(scale.place(tick))
        parts.append(svg.line(x, frame.top, x, frame.bottom, "one" if tick == 1 else "rule"))
        parts.append(svg.text(x, frame.bottom + 15, f"{tick_label(tick)} ×", "middle", "small"))
    for i, (bar, span) in enumerate(zip(bars, spans, strict=True)):
        middle = first + _LEVEL_HEIGHT * (i + 0.5)
        one, low, value, high = (frame.x(scale.place(v)) for v in (1.0, *span))
        left, right = min(one, value), max(one, value)
        kind, tip = _BAR_KINDS.get(bar.tone, "base"), f"{bar.name}: {bar.figure}"
        parts += [
            *_names(middle, bar.name),
            *_figure_texts(middle, bar.figure),
            svg.box(left, middle - _BAR / 2, max(right - left, 1.5), _BAR, kind, tip),
            *_whisker(low, high, middle, span[2] <= scale.high),
        ]
    return parts, bottom + 30


def _names(middle: float, title: str, bold: bool = False) -> list[str]:
    """Write a name in one line or two, the second cut; all of it is in the tip of its bar."""
    lines = _folded(title)
    start = middle + 4 - 7 * (len(lines) - 1)
    kind = "bold" if bold else ""
    return [svg.text(_MARGIN, start + 14 * i, line, "start", kind) for i, line in enumerate(lines)]


def _folded(title: str, most: int = _LETTERS) -> list[str]:
    lines = [""]
    for word in printable(title).split():
        joined = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and _long(joined) > most:
            lines.append(word)
        else:
            lines[-1] = joined
    kept = [_cut(line, most) for line in lines[:2]]
    if len(lines) > 2 and not kept[1].endswith(ELLIPSIS):
        kept[1] = _cut(f"{kept[1]} {'x' * most}", most)
    return kept


def _cut(line: str, most: int = _LETTERS) -> str:
    if _long(line) <= most:
        return line
    while line and _long(line) > most - 1.5:
        line = line[:-1]
    return line.rstrip() + ELLIPSIS


def _long(line: str) -> float:
    """Return the length of a line in letters of the usual width."""
    return cell_len(line) + len(_BROAD.findall(line)) / 2


def _figure_texts(middle: float, figure: str, note: str = "") -> list[str]:
    if not note:
        return [svg.text(_RIGHT + 14, middle + 4, figure, "start", "bold")]
    return [
        svg.text(_RIGHT + 14, middle - 2, figure, "start", "bold"),
        svg.text(_RIGHT + 14, middle + 12, note, "start", "small"),
    ]


def _waterfall_words(chart: WaterfallChart) -> str:
    levels = [f"{level.title} {level.figure} {level.note}".strip() for level in chart.levels]
    bars = [f"{bar.name} {bar.figure}" for bar in chart.bars]
    parts = ["; ".join(levels), ("Left out: " if levels else "Tried: ") + "; ".join(bars)]
    return ". ".join(part for part, known in zip(parts, (levels, bars), strict=True) if known)


_DRAWINGS: dict[type, Any] = {
    ForestChart: forest, SamplesChart: samples, RoundsChart: rounds_histogram, SplitChart: split,
    TimelineChart: timeline, CurveChart: curve, RooflineChart: roofline, WaterfallChart: waterfall,
}  # fmt: skip

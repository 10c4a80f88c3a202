"""A comparison drawn: intervals on a common axis, every sample over the rounds, and the ratios of
the rounds. Inline SVG, coloured by the page it stands in."""

import math
from collections.abc import Sequence

from msgspec import Struct

from ridgeline.records.comparison import Arm, Candidate, Comparison, Estimate
from ridgeline.report import svg
from ridgeline.report.comparison_axis import Axis, axis, label, ticks
from ridgeline.report.comparison_forest import shorten
from ridgeline.report.comparison_headline import TONES, Tone
from ridgeline.report.comparison_numbers import band, interval, is_ratio, share, span, time
from ridgeline.units import plural

WIDTH = 760.0
_NAMES, _FIGURES, _EDGE = 170.0, 150.0, 14.0
_ROW = 26.0
_LONGEST_NAME = 21


class Mark(Struct, frozen=True):
    """One line of the forest."""

    name: str
    estimate: Estimate
    tone: Tone


def marks(c: Comparison) -> list[Mark]:
    control = Mark("A/A control", c.control.estimate, "bad" if c.control.differs else "plain")
    return [control, *(Mark(k.arm.name, k.deciding, TONES[k.verdict]) for k in c.candidates)]


def forest(found: Sequence[Mark], around: float) -> str:
    """Each interval on one axis, the band that does not matter shaded; "" with nothing to draw."""
    found = [m for m in found if is_ratio(m.estimate.ratio)]
    if not found:
        return ""
    scale = axis([span(m.estimate) for m in found], around)
    bottom = 10 + _ROW * len(found)
    frame = svg.Frame(left=_NAMES, right=WIDTH - _FIGURES, top=6, bottom=bottom)
    parts = [*_band(scale, frame, around), *_ratio_axis(scale, frame, "× baseline, log scale")]
    for i, mark in enumerate(found):
        parts += _interval(scale, frame, 10 + _ROW * (i + 0.5), mark)
    told = "; ".join(f"{m.name} {interval(m.estimate)}" for m in found)
    described = f"{told}. Shaded: within {share(around)} of 1."
    return svg.drawing(WIDTH, bottom + 40, "Ratios with their intervals", described, parts)


def _interval(scale: Axis, frame: svg.Frame, y: float, mark: Mark) -> list[str]:
    e, kind = mark.estimate, f"whisker {mark.tone}"
    low, middle, high = (frame.x(scale.place(v)) for v in span(e))
    parts = [
        svg.text(frame.left - 12, y + 4, shorten(mark.name, _LONGEST_NAME), "end", "name"),
        svg.line(low, y, high, y, kind),
        svg.dot(middle, y, 4.5, f"point {mark.tone}", f"{mark.name}: {interval(e)}"),
        svg.text(frame.right + 12, y + 4, interval(e), "start", "figure"),
    ]
    # An end that is off the axis has no cap: the line runs out of the picture.
    if e.ci_low >= scale.low:
        parts.append(svg.line(low, y - 5, low, y + 5, kind))
    if e.ci_high <= scale.high:
        parts.append(svg.line(high, y - 5, high, y + 5, kind))
    return parts


def _band(scale: Axis, frame: svg.Frame, around: float) -> list[str]:
    left, right = (frame.x(scale.place(v)) for v in (1 / (1 + around), 1 + around))
    height = frame.bottom - frame.top
    tip = f"within {share(around)} of 1"
    return [svg.box(left, frame.top, right - left, height, "band", tip)]


def _ratio_axis(scale: Axis, frame: svg.Frame, title: str) -> list[str]:
    parts = [svg.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis")]
    for tick in scale.ticks:
        x = frame.x(scale.place(tick))
        parts.append(svg.line(x, frame.top, x, frame.bottom, "one" if tick == 1 else "grid"))
        parts.append(svg.text(x, frame.bottom + 15, label(tick), "middle", "tick"))
    below = frame.bottom + 32
    parts.append(svg.text(frame.x(0.5), below, title, "middle", "title"))
    parts.append(svg.text(frame.left, below, "← slower", "start", "title"))
    parts.append(svg.text(frame.right, below, "faster →", "end", "title"))
    return parts


class Range(Struct, frozen=True):
    """What is drawn of a set of numbers: Tukey's outer fences at most, so that one stall of a
    second does not flatten all the rest. What lies beyond is marked at the edge."""

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


def samples(c: Comparison) -> str:
    """A strip an arm, each on its own scale: drift and stalls are seen in any of them."""
    strips = [("baseline", c.baseline, "baseline")]
    strips += [(k.arm.name, k.arm, "candidate") for k in c.candidates]
    strips = [s for s in strips if any(is_ratio(v) for v in s[1].samples_ns)]
    if not strips:
        return ""
    height, gap = 84.0, 20.0
    longest = max(len(arm.samples_ns) for _, arm, _ in strips)
    parts: list[str] = []
    for i, (name, arm, kind) in enumerate(strips):
        top = 10 + i * (height + gap)
        frame = svg.Frame(left=_NAMES + 60, right=WIDTH - _EDGE, top=top, bottom=top + height)
        parts += _strip(frame, name, arm, kind, longest)
    bottom = 10 + len(strips) * (height + gap) - gap
    frame = svg.Frame(left=_NAMES + 60, right=WIDTH - _EDGE, top=10, bottom=bottom)
    parts += _round_axis(frame, longest)
    medians = "; ".join(f"{name} median {time(arm.summary.median_ns)}" for name, arm, _ in strips)
    described = f"{medians}. {plural(longest, 'round')}; each strip has its own scale."
    return svg.drawing(WIDTH, bottom + 40, "Every sample over the rounds", described, parts)


def _strip(frame: svg.Frame, name: str, arm: Arm, kind: str, longest: int) -> list[str]:
    known = [(i, v) for i, v in enumerate(arm.samples_ns) if is_ratio(v)]
    scale = fenced([v for _, v in known])

    def at(i: int, value: float) -> tuple[float, float]:
        return frame.x((i + 0.5) / longest), frame.y(scale.place(value))

    inside = [(i, v) for i, v in known if scale.low <= v <= scale.high]
    beyond = [(i, v) for i, v in known if not scale.low <= v <= scale.high]
    middle = frame.y(scale.place(arm.summary.median_ns))
    parts = [
        svg.box(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top, "pane"),
        svg.text(0, frame.top + 14, shorten(name, _LONGEST_NAME), "start", "name"),
        svg.text(0, frame.top + 31, f"median {time(arm.summary.median_ns)}", "start", "tick"),
        svg.line(frame.left, middle, frame.right, middle, "median"),
        svg.track((at(i, v) for i, v in inside), f"track {kind}"),
        svg.dots((at(i, v) for i, v in inside), f"dots {kind}"),
    ]
    for value in (scale.low, (scale.low + scale.high) / 2, scale.high):
        y = frame.y(scale.place(value))
        parts.append(svg.text(frame.left - 8, y + 4, time(value), "end", "tick"))
    for i, value in beyond:
        up = value > scale.high
        y = frame.top + 8 if up else frame.bottom - 8
        tip = f"round {i + 1}: {time(value)}"
        parts.append(svg.arrow(at(i, value)[0], y, up, "beyond", tip))
    if beyond:
        worst = max(v for _, v in beyond)
        words = f"{len(beyond)} off the scale (▲)"
        parts.append(svg.text(0, frame.top + 47, words, "start", "tick"))
        parts.append(svg.text(0, frame.top + 63, f"up to {time(worst)}", "start", "tick"))
    return parts


def _round_axis(frame: svg.Frame, longest: int) -> list[str]:
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, longest) if longest / s <= 9)
    parts = [
        svg.text(frame.x((i - 0.5) / longest), frame.bottom + 15, f"{i:,}", "middle", "tick")
        for i in (1, *range(step, longest + 1, step))
        if i == 1 or i > max(1, step // 2)
    ]
    return [*parts, svg.text(frame.x(0.5), frame.bottom + 32, "round", "middle", "title")]


def ratios(c: Comparison, k: Candidate) -> str:
    """A histogram of baseline / candidate, a count a round, with the interval above it; "" where
    samples were left out, since rounds can no longer be told."""
    before, after = c.baseline.samples_ns, k.arm.samples_ns
    if len(before) != len(after):
        return ""
    more = 1.0  # items a call, where the ratio is of time an item
    if k.throughput_ratio is not None and c.baseline.items and k.arm.items:
        more = k.arm.items / c.baseline.items
    rounds = zip(before, after, strict=True)
    logs = [math.log(b / a * more) for b, a in rounds if is_ratio(b) and is_ratio(a)]
    if len(logs) < 2:
        return ""
    scale = _ratio_scale(c, k, logs)
    counts, below, above = _binned(logs, scale)
    frame = svg.Frame(left=_NAMES, right=WIDTH - _FIGURES, top=30, bottom=140)
    parts = [*_band(scale, frame, band(c)), *_ratio_axis(scale, frame, "× baseline in one round")]
    parts += _bars(frame, counts, scale)
    parts += _interval(scale, frame, 16, Mark(k.arm.name, k.deciding, TONES[k.verdict]))
    if below:
        parts.append(svg.text(frame.left - 8, frame.y(0.2), f"{below} farther ←", "end", "tick"))
    if above:
        parts.append(svg.text(frame.right + 8, frame.y(0.2), f"→ {above} farther", "start", "tick"))
    described = (
        f"{plural(len(logs), 'round')}; the estimate is {interval(k.deciding)}; "
        f"{below} below and {above} above what is drawn."
    )
    return svg.drawing(WIDTH, 180, f"Ratio of each round, {k.arm.name}", described, parts)


def _binned(logs: Sequence[float], scale: Axis) -> tuple[list[int], int, int]:
    """Counts over the axis, and how many lie below and above it. Bins are as wide as they would be
    over the rounds alone (2 √n of them), however much of the axis is there to show 1."""
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


def _ratio_scale(c: Comparison, k: Candidate, logs: Sequence[float]) -> Axis:
    """The rounds and the interval; 1 and its band too, unless they are so far away that the
    histogram would shrink to a third."""
    fences = fenced(logs)
    ends = [v for v in (k.deciding.ci_low, k.deciding.ci_high) if is_ratio(v)]
    low = min([fences.low, *map(math.log, ends)])
    high = max([fences.high, *map(math.log, ends)])
    air, reach = 0.03 * (high - low), math.log(1 + band(c))
    low, high = low - air, high + air
    wide_low, wide_high = min(low, -1.2 * reach), max(high, 1.2 * reach)
    if wide_high - wide_low < 3 * (high - low):
        low, high = wide_low, wide_high
    return Axis(
        low=math.exp(low), high=math.exp(high), ticks=ticks(math.exp(low), math.exp(high), 7)
    )

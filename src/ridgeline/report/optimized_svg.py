"""The ladder drawn: a waterfall from the unchanged program down to what was confirmed, and below it
what each kept change still gives when it alone is left out. One SVG that needs nothing else, light
or dark as the reader has it."""

import math
import re
from collections.abc import Sequence
from html import escape

from msgspec import Struct
from rich.cells import cell_len

from ridgeline.records.facts import Ratio
from ridgeline.records.optimized import Optimized
from ridgeline.report import svg
from ridgeline.report.comparison_axis import Axis, axis, label
from ridgeline.report.comparison_numbers import is_ratio
from ridgeline.report.optimized_ladder import better, left_out, titled, titles, tried, verdict
from ridgeline.report.optimized_levels import Level, Scale, levels, scale
from ridgeline.report.optimized_words import factor, gained, headline
from ridgeline.report.plain import ELLIPSIS, printable

WIDTH = 880.0
_LEFT, _RIGHT = 272.0, 668.0
"""Of the frame; names stand left of it, figures right."""
_EDGE = 16.0
_ROW, _BAR = 40.0, 18.0
_LETTERS = 38
"""Of a line of a name: 240 points at 6.3 a letter of 12-point type."""
_WHOLE = 88
"""Of a line over the whole width, in 16-point type."""
_BROAD = re.compile(r"[A-Zmw@%&—…]")
"""Letters half as wide again."""
_BELOW_HEADING = 76.0
_FULLEST = 1.04
STYLE = """
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


class Bar(Struct, frozen=True):
    """A ratio of the lower panel."""

    title: str
    ratio: Ratio
    kind: str


def waterfall(found: Optimized, *, headed: bool = True) -> str:
    """`headed`: with the answer above it, for a picture that stands alone; without it, and where
    nothing was measured, there is nothing to draw: ""."""
    steps, bars = levels(found), _bars(found)
    if not steps and not bars and not headed:
        return ""
    title = headline(found).text
    parts, bottom = _heading(found, title) if headed else ([], 14.0)
    if steps:
        drawn, bottom = _panel(found, steps, bottom)
        parts += drawn
    if bars:
        head = "Each left out: the whole against the whole without it" if steps else (
            "What was tried, against the program before it: nothing was kept")  # fmt: skip
        drawn, bottom = _ratios(head, bars, bottom + (26 if steps else 0))
        parts += drawn
    for text in _foot(found) if steps or bars else ["Nothing was measured."]:
        bottom += 18
        parts.append(svg.text(_EDGE, bottom, text, "start", "small"))
    paper = svg.box(0, 0, WIDTH, bottom + 14, "paper")
    inside = f"<title>{escape(title)}</title><style>{STYLE}</style>"
    body = f'{inside}<g class="ladder">{paper}{"".join(parts)}</g>'
    return svg.drawing(WIDTH, bottom + 14, title, _described(steps, bars), [body])


def _heading(found: Optimized, title: str) -> tuple[list[str], float]:
    """And where what is below it begins: figures at the end of an answer are not cut."""
    about = " · ".join(part for part in (found.command, found.device) if part)
    lines = _folded(title, _WHOLE)
    parts = [
        svg.text(_EDGE, 30 + 20 * at, line, "start", "answer") for at, line in enumerate(lines)
    ]
    below = 20.0 * (len(lines) - 1)
    parts.append(svg.text(_EDGE, 50 + below, _cut(printable(about), _WHOLE), "start", "small"))
    return parts, _BELOW_HEADING + below


def _bars(found: Optimized) -> list[Bar]:
    if levels(found):
        known = [(rung, ratio) for rung, ratio in left_out(found) if is_ratio(ratio.value)]
        if len(known) < 2:
            return []
        return [Bar(printable(titled(rung)), ratio, "gain") for rung, ratio in known]
    kinds = {"FASTER": "gain", "SLOWER": "lost"}
    return [
        Bar(printable(titles(line.rungs)), line.rung.ratio, kinds.get(verdict(line.rung), "base"))
        for line in tried(found)
        if line.rung.ratio is not None and is_ratio(line.rung.ratio.value)
    ]


def _panel(found: Optimized, steps: Sequence[Level], top: float) -> tuple[list[str], float]:
    shown = scale(found)
    most = max(max(step.value, step.before) for step in steps) * _FULLEST
    first = top + 22
    bottom = first + _ROW * len(steps)
    frame = svg.Frame(left=_LEFT, right=_RIGHT, top=first, bottom=bottom)
    parts = [svg.text(_EDGE, top + 8, f"{shown.title[:1].upper()}{shown.title[1:]}", kind="head")]
    parts += _ticks(frame, most, shown)
    for at, step in enumerate(steps):
        middle = first + _ROW * (at + 0.5)
        parts += _names(middle, step.title, step.kind in ("base", "end"))
        parts += _figures(middle, step.figure, step.note)
        parts += _level(frame, middle, step, most)
        if at + 1 < len(steps):
            x = frame.x(step.value / most)
            parts.append(svg.line(x, middle + _BAR / 2, x, middle + _ROW - _BAR / 2, "join"))
    return parts, bottom + 30


def _level(frame: svg.Frame, middle: float, step: Level, most: float) -> list[str]:
    top = middle - _BAR / 2
    ground, before, value = (frame.x(v / most) for v in (0.0, step.before, step.value))
    tip = f"{step.title}: {step.figure} {step.note}".strip()
    if step.before:
        left, right = min(before, value), max(before, value)
        parts = [svg.box(ground, top, left - ground, _BAR, "rest", tip)]
        # A drop too small to be seen is still a line.
        parts.append(svg.box(left, top, max(right - left, 1.5), _BAR, step.kind, tip))
    else:
        parts = [svg.box(ground, top, value - ground, _BAR, step.kind, tip)]
    if step.low is not None and step.high is not None:
        ends = [min(end / most, 1.0) for end in (step.low, step.high)]
        parts += _span(frame.x(ends[0]), frame.x(ends[1]), middle, step.high <= most)
    return parts


def _span(left: float, right: float, middle: float, capped: bool = True) -> list[str]:
    """A whisker; an end outside the picture has no cap."""
    parts = [svg.line(left, middle, right, middle, "span")]
    parts.append(svg.line(left, middle - 5, left, middle + 5, "span"))
    return [*parts, svg.line(right, middle - 5, right, middle + 5, "span")] if capped else parts


def _ticks(frame: svg.Frame, most: float, shown: Scale) -> list[str]:
    rough = most / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * n for n in (1, 2, 5, 10) if size * n >= rough)
    parts = []
    for at in range(int(most / step) + 1):
        x = frame.x(at * step / most)
        words = f"{label(at * step)} {shown.unit}".rstrip() if at else "0"
        parts.append(svg.line(x, frame.top, x, frame.bottom, "rule"))
        parts.append(svg.text(x, frame.bottom + 15, words, "middle", "small"))
    return parts


def _ratios(head: str, bars: Sequence[Bar], top: float) -> tuple[list[str], float]:
    spans = [(b.ratio.ci_low, b.ratio.value, b.ratio.ci_high) for b in bars]
    known = [(m if not is_ratio(a) else a, m, m if not is_ratio(b) else b) for a, m, b in spans]
    over = axis(known, 0.0)
    first = top + 22
    frame = svg.Frame(left=_LEFT, right=_RIGHT, top=first, bottom=first + _ROW * len(bars))
    parts = [svg.text(_EDGE, top + 8, head, kind="head")]
    for tick in over.ticks:
        x = frame.x(over.place(tick))
        parts.append(svg.line(x, frame.top, x, frame.bottom, "one" if tick == 1 else "rule"))
        parts.append(svg.text(x, frame.bottom + 15, f"{label(tick)} ×", "middle", "small"))
    for at, (bar, span) in enumerate(zip(bars, known, strict=True)):
        parts += _ratio(frame, over, first + _ROW * (at + 0.5), bar, span)
    return parts, frame.bottom + 30


def _ratio(
    frame: svg.Frame, over: Axis, middle: float, bar: Bar, span: tuple[float, float, float]
) -> list[str]:
    one, *ends = (frame.x(over.place(v)) for v in (1.0, *span))
    left, right = min(one, ends[1]), max(one, ends[1])
    tip = f"{bar.title}: {factor(bar.ratio)}"
    return [
        *_names(middle, bar.title),
        *_figures(middle, factor(bar.ratio)),
        svg.box(left, middle - _BAR / 2, max(right - left, 1.5), _BAR, bar.kind, tip),
        *_span(ends[0], ends[2], middle, span[2] <= over.high),
    ]


def _names(middle: float, title: str, bold: bool = False) -> list[str]:
    """One line or two, the second cut; all of it is in the bar's tip."""
    lines = _folded(title)
    start = middle + 4 - 7 * (len(lines) - 1)
    kind = "bold" if bold else ""
    return [svg.text(_EDGE, start + 14 * at, line, "start", kind) for at, line in enumerate(lines)]


def _folded(title: str, most: int = _LETTERS) -> list[str]:
    lines = [""]
    for word in title.split():
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
    """In letters of the usual width."""
    return cell_len(line) + len(_BROAD.findall(line)) / 2


def _figures(middle: float, figure: str, note: str = "") -> list[str]:
    if not note:
        return [svg.text(_RIGHT + 14, middle + 4, figure, "start", "bold")]
    return [
        svg.text(_RIGHT + 14, middle - 2, figure, "start", "bold"),
        svg.text(_RIGHT + 14, middle + 12, note, "start", "small"),
    ]


def _foot(found: Optimized) -> list[str]:
    said = ["× with 95 % intervals: how many times better than the rung before."]
    if found.control is not None:
        said[0] += f" The unchanged program against itself: {factor(found.control)}."
    if found.with_batch is not None:
        gain = gained("time a sample", found.with_batch.ratio)
        sure = "" if better(found.with_batch) else ", not confirmed"
        said.append(f"With another batch size, which is not the same training: {gain}{sure}.")
    return said


def _described(steps: Sequence[Level], bars: Sequence[Bar]) -> str:
    told = [f"{step.title} {step.figure} {step.note}".strip() for step in steps]
    more = [f"{bar.title} {factor(bar.ratio)}" for bar in bars]
    parts = ["; ".join(told), ("Left out: " if steps else "Tried: ") + "; ".join(more)]
    return ". ".join(part for part, known in zip(parts, (told, more), strict=True) if known)

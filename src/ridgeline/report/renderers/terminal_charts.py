"""Charts as lines of characters."""

from collections.abc import Callable
from math import ceil, floor, log10

from rich.cells import cell_len
from rich.text import Text

from ridgeline import units
from ridgeline.report.document import ForestChart, IntervalMark, Part, RooflineChart, SplitChart
from ridgeline.report.numbers import Axis, axis, tick_label
from ridgeline.report.plain import ELLIPSIS, printable

ROOFLINE_COLUMNS, ROOFLINE_LINES = 64, 12
MIN_ROOFLINE_COLUMNS = 20
_MARGIN = 13

MAX_FOREST_COLUMNS, MIN_FOREST_COLUMNS = 72, 28
MAX_FOREST_NAME = 28

SPLIT_COLUMNS = 40
"""Characters for the whole of a split."""
MIN_PART_SHARE = 0.005
"""Smaller parts are counted, not drawn."""
_COLOURS = {
    "busy": "green", "input": "red", "synchronisation": "magenta", "transfer": "blue",
    "launch-bound": "yellow", "allocator": "cyan", "compile": "bright_blue",
    "collective wait": "bright_magenta", "garbage collection": "bright_red",
    "other host": "bright_yellow", "forward": "green", "backward": "green", "optimizer": "cyan",
    "evaluation": "magenta",
}  # fmt: skip


def roofline_lines(chart: RooflineChart, columns: int) -> list[str]:
    """Return the lines of a chart that is at most `columns` wide; none where there is nothing to
    draw against."""
    width = min(ROOFLINE_COLUMNS, columns - _MARGIN - 3)
    marks = [m for m in chart.marks if m.intensity > 0 and m.flops_per_s > 0]
    peak, bandwidth = max(chart.peaks, default=0.0), chart.bandwidth
    if width < MIN_ROOFLINE_COLUMNS or not peak or not bandwidth or not marks:
        return []
    ridge = peak / bandwidth
    left = floor(log10(min(ridge, *(m.intensity for m in marks)))) - 0.5
    right = ceil(log10(max(ridge, *(m.intensity for m in marks)))) + 0.5
    top = log10(peak) + 0.15
    lowest = min(log10(m.flops_per_s) for m in marks)
    bottom = min(lowest, left + log10(bandwidth)) - 0.2
    grid = [[" "] * width for _ in range(ROOFLINE_LINES)]

    def line(value: float) -> int:
        share = (log10(value) - bottom) / (top - bottom)
        return min(max(round((1 - share) * (ROOFLINE_LINES - 1)), 0), ROOFLINE_LINES - 1)

    def column(intensity: float) -> int:
        share = (log10(intensity) - left) / (right - left)
        return min(max(round(share * (width - 1)), 0), width - 1)

    for x in range(width):
        intensity = 10 ** (left + x * (right - left) / (width - 1))
        attainable = min(peak, intensity * bandwidth)
        if log10(attainable) >= bottom:
            grid[line(attainable)][x] = "─" if attainable == peak else "╱"
    for mark in marks:
        grid[line(mark.flops_per_s)][column(mark.intensity)] = mark.letter
    drawn = [
        f"{units.flops(peak) if y == line(peak) else '':>{_MARGIN}} │{''.join(cells)}".rstrip()
        for y, cells in enumerate(grid)
    ]
    drawn.append(" " * _MARGIN + " └" + "─" * width)
    label = f"ridge {units.significant(ridge)} FLOP/B"
    start = _MARGIN + 2 + column(ridge)
    if column(ridge) + len(label) + 2 <= width:
        drawn.append(" " * start + f"▲ {label}")
    else:  # no room to the right of the arrow
        drawn.append(f"{label} ▲".rjust(start + 1))
    first, last = (f"{units.significant(10**edge, 2)}" for edge in (left, right))
    scale = " " * (_MARGIN + 2) + first
    drawn.append(scale + f"FLOP/byte → {last}".rjust(_MARGIN + 2 + width - len(scale)))
    return drawn


def forest_lines(chart: ForestChart, columns: int) -> list[str]:
    """Return a line for each interval on a common logarithmic axis, with the band that does not
    matter shaded around 1; none where the chart would not fit or show anything."""
    names = [printable(mark.name) for mark in chart.marks]
    margin = min(max(map(len, names), default=0), MAX_FOREST_NAME)
    width = min(MAX_FOREST_COLUMNS, columns - margin - 2)
    if len(chart.marks) < 2 or width < MIN_FOREST_COLUMNS:
        return []
    scale = axis([(m.low, m.value, m.high) for m in chart.marks], chart.band, width // 9)

    def column(ratio: float) -> int:
        return round(scale.place(ratio) * (width - 1))

    lines = [
        f"{shorten_start(name, margin):<{margin}}  {_interval(scale, column, mark, chart, width)}"
        for name, mark in zip(names, chart.marks, strict=True)
    ]
    gap = " " * (margin + 2)
    legends = (
        f"░ {chart.band_meaning} · left of 1 slower, right faster",
        f"░ {chart.band_meaning}",
    )
    legend = [gap + text for text in legends if len(text) <= width][:1]
    return [*lines, gap + _tick_labels(scale, column, width), *legend]


def shorten_start(name: str, width: int) -> str:
    """Cut the start of a long name: its end, file.py:function, says most."""
    return name if len(name) <= width else f"{ELLIPSIS}{name[len(name) - width + 1 :]}"


def _interval(
    scale: Axis, column: Callable[[float], int], mark: IntervalMark, chart: ForestChart, width: int
) -> str:
    cells = [" "] * width
    for x in range(column(1 / (1 + chart.band)), column(1 + chart.band) + 1):
        cells[x] = "░"
    cells[column(1.0)] = "│"
    low, middle, high = (column(v) for v in (mark.low, mark.value, mark.high))
    for x in range(low, high + 1):
        cells[x] = "─"
    if high > low:
        cells[low] = "◀" if mark.low < scale.low else "├"
        cells[high] = "▶" if mark.high > scale.high else "┤"
    cells[middle] = "●"
    return "".join(cells).rstrip()


def _tick_labels(scale: Axis, column: Callable[[float], int], width: int) -> str:
    """Write tick labels under their columns: 1 first, and none that would touch another."""
    cells = [" "] * width
    for tick in sorted(scale.ticks, key=lambda t: t != 1):
        text = tick_label(tick)
        start = min(max(column(tick) - len(text) // 2, 0), width - len(text))
        if all(cell == " " for cell in cells[max(start - 1, 0) : start + len(text) + 1]):
            cells[start : start + len(text)] = text
    return "".join(cells).rstrip()


def split_lines(chart: SplitChart, width: int) -> list[Text]:
    """Return the parts of a whole to scale: on one line where they fit, else a line each."""
    total = sum(part.value for part in chart.parts)
    if not total or width < MIN_ROOFLINE_COLUMNS:
        return []
    shown = [part for part in chart.parts if part.value / total >= MIN_PART_SHARE]
    smaller = sum(1 for part in chart.parts if 0 < part.value / total < MIN_PART_SHARE)
    more = f"{units.plural(smaller, 'part')} below {units.percent(MIN_PART_SHARE)}"
    line = Text()
    for number, part in enumerate(shown):
        line.append(f"{'    ' if number else ''}{printable(part.name)} ")
        line.append("█" * round(part.value / total * SPLIT_COLUMNS) or "▏", _colour(part))
        line.append(f" {part.figure}")
    if smaller:
        line.append(f"    {more}", "dim")
    if line.cell_len <= width:
        return [line]
    names = max(cell_len(printable(part.name)) for part in shown)
    figures = max(len(part.figure) for part in shown)
    shares = max(len(part.share) for part in shown)
    room = min(max(width - names - figures - shares - 4, 4), SPLIT_COLUMNS)
    largest = max(part.value for part in shown)
    lines = []
    for part in shown:
        blocks = "█" * round(part.value / largest * room) or "▏"
        name = printable(part.name)
        text = Text(f"{name}{' ' * (names - cell_len(name))} ")
        text.append(f"{blocks:<{room}}", _colour(part))
        text.append(f" {part.figure:>{figures}}")
        lines.append(text.append(f"  {part.share:>{shares}}" if shares else ""))
    return [*lines, Text(more, "dim")] if smaller else lines


def _colour(part: Part) -> str:
    return _COLOURS.get(part.name, "bright_black")

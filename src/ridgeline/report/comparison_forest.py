"""Intervals as text: a line an arm on a common logarithmic axis, the band that does not matter
shaded around 1."""

from msgspec import Struct

from ridgeline.records.comparison import Comparison, Estimate
from ridgeline.report.comparison_axis import Axis, axis, label
from ridgeline.report.comparison_numbers import band, is_ratio, shaded, span

WIDEST, NARROWEST = 72, 28
LONGEST_NAME = 28


class Line(Struct, frozen=True):
    name: str
    estimate: Estimate


def lines(c: Comparison) -> list[Line]:
    """The control first, then each candidate, where there is an interval to draw."""
    found = [Line("A/A control", c.control.estimate)]
    found += [Line(k.arm.name, k.deciding) for k in c.candidates]
    return [x for x in found if is_ratio(x.estimate.ratio)]


def draw(c: Comparison, columns: int) -> list[str]:
    """Lines of a chart at most `columns` wide; empty where it would not fit or show anything."""
    found = lines(c)
    margin = min(max((len(x.name) for x in found), default=0), LONGEST_NAME)
    width = min(WIDEST, columns - margin - 2)
    if len(found) < 2 or width < NARROWEST:
        return []
    scale = axis([span(x.estimate) for x in found], band(c), most_ticks=width // 9)
    body = [
        f"{shorten(x.name, margin):<{margin}}  {_interval(scale, x.estimate, band(c), width)}"
        for x in found
    ]
    gap = " " * (margin + 2)
    legends = (f"░ {shaded(c)} · left of 1 slower, right faster", f"░ {shaded(c)}")
    legend = [gap + text for text in legends if len(text) <= width][:1]
    return [*body, gap + _labels(scale, width), *legend]


def shorten(name: str, longest: int) -> str:
    """The end of a long name says most: file.py:function."""
    return name if len(name) <= longest else f"…{name[len(name) - longest + 1 :]}"


def _column(scale: Axis, ratio: float, width: int) -> int:
    return round(scale.place(ratio) * (width - 1))


def _interval(scale: Axis, estimate: Estimate, around: float, width: int) -> str:
    cells = [" "] * width
    for x in range(_column(scale, 1 / (1 + around), width), _column(scale, 1 + around, width) + 1):
        cells[x] = "░"
    cells[_column(scale, 1.0, width)] = "│"
    low, middle, high = (_column(scale, v, width) for v in span(estimate))
    for x in range(low, high + 1):
        cells[x] = "─"
    if high > low:
        cells[low] = "◀" if estimate.ci_low < scale.low else "├"
        cells[high] = "▶" if estimate.ci_high > scale.high else "┤"
    cells[middle] = "●"
    return "".join(cells).rstrip()


def _labels(scale: Axis, width: int) -> str:
    """Tick labels under their columns; 1 first, and none that would touch another."""
    cells = [" "] * width
    for tick in sorted(scale.ticks, key=lambda t: t != 1):
        text = label(tick)
        start = min(max(_column(scale, tick, width) - len(text) // 2, 0), width - len(text))
        if all(cell == " " for cell in cells[max(start - 1, 0) : start + len(text) + 1]):
            cells[start : start + len(text)] = text
    return "".join(cells).rstrip()

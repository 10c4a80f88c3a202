"""The roofline as text: attainable FLOP/s over intensity, both logarithmic, models as letters."""

from math import ceil, floor, log10

from msgspec import Struct

from ridgeline import units

WIDTH, HEIGHT = 64, 12
MARGIN = 13


class Mark(Struct, frozen=True):
    letter: str
    intensity: float
    flops_per_second: float


def draw(peak: float, bandwidth: float, marks: list[Mark], columns: int = 100) -> list[str]:
    """Lines of a chart, at most `columns` wide; empty where there is nothing to draw against."""
    width = min(WIDTH, columns - MARGIN - 3)
    if width < 20:
        return []
    marks = [m for m in marks if m.intensity > 0 and m.flops_per_second > 0]
    if not peak or not bandwidth or not marks:
        return []
    ridge = peak / bandwidth
    left = floor(log10(min(ridge, *(m.intensity for m in marks)))) - 0.5
    right = ceil(log10(max(ridge, *(m.intensity for m in marks)))) + 0.5
    top = log10(peak) + 0.15
    lowest = min(log10(m.flops_per_second) for m in marks)
    bottom = min(lowest, left + log10(bandwidth)) - 0.2
    grid = [[" "] * width for _ in range(HEIGHT)]

    def row(value: float) -> int:
        share = (log10(value) - bottom) / (top - bottom)
        return min(max(round((1 - share) * (HEIGHT - 1)), 0), HEIGHT - 1)

    def column(intensity: float) -> int:
        share = (log10(intensity) - left) / (right - left)
        return min(max(round(share * (width - 1)), 0), width - 1)

    for x in range(width):
        intensity = 10 ** (left + x * (right - left) / (width - 1))
        attainable = min(peak, intensity * bandwidth)
        if log10(attainable) >= bottom:
            grid[row(attainable)][x] = "─" if attainable == peak else "╱"
    for mark in marks:
        grid[row(mark.flops_per_second)][column(mark.intensity)] = mark.letter
    return _labelled(grid, peak, ridge, column(ridge), row(peak), (left, right))


def _labelled(
    grid: list[list[str]],
    peak: float,
    ridge: float,
    ridge_column: int,
    peak_row: int,
    span: tuple[float, float],
) -> list[str]:
    width = len(grid[0])
    lines = []
    for y, cells in enumerate(grid):
        label = units.flops(peak) if y == peak_row else ""
        lines.append(f"{label:>{MARGIN}} │{''.join(cells)}".rstrip())
    lines.append(" " * MARGIN + " └" + "─" * width)
    label = f"ridge {units.significant(ridge)} FLOP/B"
    start = MARGIN + 2 + ridge_column
    if ridge_column + len(label) + 2 <= width:
        lines.append(" " * start + f"▲ {label}")
    else:  # no room to the right of the arrow
        lines.append(f"{label} ▲".rjust(start + 1))
    left, right = (f"{units.significant(10**edge, 2)}" for edge in span)
    axis = " " * (MARGIN + 2) + left
    lines.append(axis + f"FLOP/byte → {right}".rjust(MARGIN + 2 + width - len(axis)))
    return lines

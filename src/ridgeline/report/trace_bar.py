"""The window in one line: how much of it was busy, how much idle and why, each to scale."""

from collections.abc import Sequence

from rich.markup import escape

from ridgeline.report import units
from ridgeline.report.trace_grid import time
from ridgeline.report.trace_headline import Part

BLOCKS = 48
"""Characters for the whole window; a part under a hundredth gets none, only its figure."""
LEAST = 0.005
"""Parts below half a percent are added up."""

COLOURS = {
    "busy": "green",
    "input": "red",
    "synchronisation": "magenta",
    "transfer": "blue",
    "launch-bound": "yellow",
    "allocator": "cyan",
    "compile": "bright_blue",
    "collective wait": "bright_magenta",
    "garbage collection": "bright_red",
    "other host": "bright_yellow",
}


def bar(parts: Sequence[Part], width: int) -> list[str]:
    """Lines of markup, as many parts on each as it holds."""
    total = sum(p.ns for p in parts)
    if not total:
        return []
    lines: list[str] = []
    used = 0
    for part in _merged(parts, total):
        share = part.ns / total
        blocks = "█" * round(share * BLOCKS) or "▏"
        figure = f"{units.percent(share)} {time(part.ns)}"
        wide = len(part.name) + len(blocks) + len(figure) + 2
        colour = COLOURS.get(part.name, "bright_black")
        piece = f"{escape(part.name)} [{colour}]{blocks}[/] {figure}"
        if lines and used + 4 + wide <= width:
            lines[-1] += f"    {piece}"
            used += 4 + wide
        else:
            lines.append(piece)
            used = wide
    return lines


def _merged(parts: Sequence[Part], total: int) -> list[Part]:
    kept = [p for p in parts if p.kind == "busy" or p.ns / total >= LEAST]
    small = sum(p.ns for p in parts) - sum(p.ns for p in kept)
    return [*kept, Part("other causes", small, "idle")] if small else kept

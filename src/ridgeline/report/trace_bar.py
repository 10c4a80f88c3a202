"""The window in one line: how much of it was busy, how much idle and why, each to scale."""

from collections.abc import Sequence

from rich.markup import escape

from ridgeline.report.trace_grid import share as percent
from ridgeline.report.trace_grid import time
from ridgeline.report.trace_headline import Part

BLOCKS = 48
"""Characters for the whole window, less where the terminal has less; a part under a hundredth gets
none, only its figure."""
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
    shown = _merged(parts, total)
    scale = min(BLOCKS, *(_room(part, total, width) for part in shown))
    lines: list[str] = []
    used = 0
    for part in shown:
        blocks = "█" * round(part.ns / total * scale) or "▏"
        figure = _figure(part, total)
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


def _figure(part: Part, total: int) -> str:
    return f"{percent(part.ns / total)} {time(part.ns)}"


def _room(part: Part, total: int, width: int) -> int:
    """The length of the whole window at which this part just fits a line."""
    left = width - len(part.name) - len(_figure(part, total)) - 2
    return int(max(left, 1) * total / max(part.ns, 1))


def _merged(parts: Sequence[Part], total: int) -> list[Part]:
    kept = [p for p in parts if p.kind == "busy" or p.ns / total >= LEAST]
    small = sum(p.ns for p in parts) - sum(p.ns for p in kept)
    return [*kept, Part("other causes", small, "idle")] if small else kept

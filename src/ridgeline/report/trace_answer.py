"""The answer to a query: a table of whatever the person asked for."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from ridgeline import units
from ridgeline.report.plain import printable, shorten
from ridgeline.report.trace_grid import Column
from ridgeline.report.trace_markdown import table as markdown_table
from ridgeline.report.trace_table import print_table, table
from ridgeline.report.trace_terminal import say

SCHEMA = "ridgeline.trace-query/1"
MOST_SHOWN = 60
"""Rows a terminal shows; files have all."""

Rows = Sequence[tuple[Any, ...]]


def document(columns: tuple[str, ...], rows: Rows, truncated: bool) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "columns": list(columns),
        "rows": [[_plain(cell) for cell in row] for row in rows],
        "truncated": truncated,
    }


def markdown(columns: tuple[str, ...], rows: Rows) -> str:
    return "\n".join(markdown_table(_columns(columns, rows), _cells(rows))) + "\n"


def show(columns: tuple[str, ...], rows: Rows, console: Console, truncated: bool = False) -> None:
    """`truncated`: there were more rows than were taken, nobody knows how many."""
    shown = rows[:MOST_SHOWN]
    if not columns:
        console.print(" the query has no answer to show", style="dim")
        return
    laid = table(_columns(columns, rows), _cells(shown), console.width, keep=True)
    print_table(laid, console)
    if not rows:
        console.print(" no rows", style="dim")
    if len(rows) > len(shown):
        of = f" of the first {len(rows):,}" if truncated else ""
        say(f"and {len(rows) - len(shown):,} more{of}; -o FILE.csv has them", console, style="dim")
    if laid.gone:
        names = escape(shorten(", ".join(laid.gone), 80))
        said = f"{units.plural(len(laid.gone), 'column')} more than fit ({names})"
        say(f"{said}; -o FILE.csv has them", console, style="dim")


def _columns(columns: tuple[str, ...], rows: Rows) -> list[Column]:
    numbers = [
        all(isinstance(row[i], int | float) for row in rows if row[i] is not None)
        for i in range(len(columns))
    ]
    return [
        Column(printable(name), "number" if is_number and rows else "name")
        for name, is_number in zip(columns, numbers, strict=True)
    ]


def _cells(rows: Rows) -> list[tuple[str, ...]]:
    return [tuple(_text(cell) for cell in row) for row in rows]


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.6g}"
    return printable(str(cell))


def _plain(cell: Any) -> Any:
    """What JSON has no form for becomes text."""
    if isinstance(cell, list | tuple):
        return [_plain(item) for item in cell]
    if (
        cell is None
        or isinstance(cell, bool | float)
        or (isinstance(cell, int) and abs(cell) < 2**63)
    ):
        return cell
    return str(cell).encode("utf-8", "replace").decode()

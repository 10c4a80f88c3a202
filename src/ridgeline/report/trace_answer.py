"""The answer to a query: a table of whatever the person asked for."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from ridgeline.report.plain import printable
from ridgeline.report.trace_grid import Column
from ridgeline.report.trace_markdown import table as markdown_table
from ridgeline.report.trace_table import table

SCHEMA = "ridgeline.trace-query/1"
MOST_SHOWN = 60
"""Rows a terminal shows; files have all."""

Rows = Sequence[tuple[Any, ...]]


def document(columns: tuple[str, ...], rows: Rows, most: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "columns": list(columns),
        "rows": [[_plain(cell) for cell in row] for row in rows[:most]],
        "truncated": len(rows) > most,
    }


def markdown(columns: tuple[str, ...], rows: Rows) -> str:
    return "\n".join(markdown_table(_columns(columns, rows), _cells(rows))) + "\n"


def show(columns: tuple[str, ...], rows: Rows, console: Console) -> None:
    shown = rows[:MOST_SHOWN]
    if not columns:
        console.print(" the query has no answer to show", style="dim")
        return
    console.print(table(_columns(columns, rows), _cells(shown), console.width, keep=True))
    if not rows:
        console.print(" no rows", style="dim")
    if len(rows) > len(shown):
        left = len(rows) - len(shown)
        console.print(f" and {left:,} more; -o FILE.csv has them", style="dim", highlight=False)


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

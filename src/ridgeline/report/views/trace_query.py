"""The answer to an SQL query on traces: a table with the columns of the query."""

from collections.abc import Sequence
from typing import Any

from ridgeline import units
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Document,
    Figures,
    Paragraph,
    Report,
    Row,
    Span,
    Table,
)
from ridgeline.report.views.trace_data import LeftOut, left_out_files

SCHEMA = "ridgeline.trace-query/1"
SHORT_ROWS = 60

Rows = Sequence[tuple[Any, ...]]


def trace_query_report(
    columns: tuple[str, ...], rows: Rows, *, truncated: bool, left_out: Sequence[LeftOut] = ()
) -> Report:
    """Return the report. `truncated` means that there are more rows, an unknown number."""
    return Report(
        document=lambda: document(columns, rows, truncated=truncated),
        data=lambda: {
            "schema": SCHEMA,
            "columns": list(columns),
            "rows": [[_plain(cell) for cell in row] for row in rows],
            "truncated": truncated,
            "left_out": left_out_files(left_out),
        },
        figures=lambda: Figures(columns, rows),
    )


def document(columns: tuple[str, ...], rows: Rows, *, truncated: bool) -> Document:
    answer = units.plural(len(rows), "row") if columns else "the query has no answer to show"
    blocks: list[Block] = []
    if columns and rows:
        blocks.append(
            Table(
                columns=_columns(columns, rows),
                rows=tuple(Row(tuple(Cell(_text(cell)) for cell in row)) for row in rows),
                short=SHORT_ROWS,
                hint="-o FILE.csv has them",
            )
        )
    if truncated:
        blocks.append(Paragraph(f"there are more than these {len(rows):,} rows", "doubt"))
    return Document(answer=(Span(answer, bold=True),), blocks=tuple(blocks), footer=SCHEMA)


def _columns(columns: tuple[str, ...], rows: Rows) -> tuple[Column, ...]:
    return tuple(
        Column(name, "number" if _is_number(i, rows) else "name", spare=-1)
        for i, name in enumerate(columns)
    )


def _is_number(i: int, rows: Rows) -> bool:
    return all(isinstance(row[i], int | float) for row in rows if row[i] is not None)


def _text(value: Any) -> str:
    """Return a cell as text. NULL is printed as null, because it is not an empty text."""
    if value is None:
        return "null"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """Return a value that JSON has a form for; others become text."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    is_small = isinstance(value, int) and abs(value) < 2**63
    return value if value is None or is_small or isinstance(value, float) else str(value)

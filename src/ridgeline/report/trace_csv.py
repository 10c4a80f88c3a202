"""A trace's report for spreadsheets: one table for everything, with a `section` column.

One header and one row a kernel, operator, module, cause, gap, rank …: a spreadsheet filters or
pivots on `section`, which it cannot do with blocks that each have a header. `ms` is what a section
is sorted by (device time, idle time); a cell a section has no figure for is empty.
"""

import csv
import io
from collections.abc import Iterator
from typing import Any

from ridgeline.records.finding import Findings
from ridgeline.records.trace import TraceComparison, TraceStudy
from ridgeline.report.cells import spreadsheet_cell
from ridgeline.report.plain import printable
from ridgeline.report.trace_document import comparison_document, to_json_document

COLUMNS = (
    "section", "name", "detail", "kind", "count", "ms", "share_pct", "host_ms", "device_ms",
    "device_self_ms", "mean_us", "at_ms", "attained_pct", "bytes", "rank", "device", "file",
    "line", "function",
)  # fmt: skip

_LISTS: dict[str, dict[str, str]] = {
    "findings": {"name": "rule", "detail": "claim", "kind": "confidence"},
    "validation": {"name": "id", "detail": "claim", "kind": "severity"},
    "devices": {"ms": "busy_ms", "share_pct": "busy_pct", "count": "operations"},
    "idle_causes": {"name": "cause", "detail": "says", "count": "gaps"},
    "gaps": {"name": "cause", "detail": "host", "kind": "step"},
    "kernels": {"detail": "op", "kind": "category"},
    "ops": {"kind": "category", "ms": "device_self_ms"},
    "shapes": {"detail": "shape", "kind": "category", "ms": "device_self_ms"},
    "modules": {"name": "path", "ms": "device_ms"},
    "categories": {"name": "category"},
    "roofline": {"name": "op", "detail": "shape", "kind": "bound"},
    "phases": {"name": "phase", "ms": "host_ms"},
    "regions": {"detail": "note", "ms": "device_ms"},
    "ranks": {"name": "label", "ms": "busy_ms", "share_pct": "busy_pct"},
    "collectives": {"detail": "group", "ms": "wait_ms"},
    "memory": {"name": "device", "detail": "note", "bytes": "peak_bytes", "at_ms": "peak_at_ms"},
}
"""Each list of the document: which of its keys fills a column of another name."""


def to_csv(study: TraceStudy, findings: Findings | None = None) -> str:
    return _written(COLUMNS, _rows(to_json_document(study, (), findings)))


def comparison_csv(c: TraceComparison) -> str:
    header = ("of", "name", "before_ms", "after_ms", "change_ms", "before_count", "after_count")
    rows = comparison_document(c)["differences"]
    return _written(header, ([row[key] for key in header] for row in rows))


def table_csv(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """Any table: the answer to a query."""
    return _written(columns, iter(rows))


def _rows(document: dict[str, Any]) -> Iterator[list[Any]]:
    whole = {**document["device"], "section": "device", "name": "all devices", "ms":
             document["device"]["busy_ms"], "share_pct": document["device"]["busy_pct"],
             "detail": document["device"]["why"]}  # fmt: skip
    yield [whole.get(column) for column in COLUMNS]
    for section, renamed in _LISTS.items():
        for entry in document[section]:
            row = {**entry, **{to: entry[key] for to, key in renamed.items()}, "section": section}
            yield [row.get(column) for column in COLUMNS]


def _written(header: tuple[str, ...], rows: Iterator[Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([spreadsheet_cell(printable(name)) for name in header])
    writer.writerows([_cell(cell) for cell in row] for row in rows)
    return text.getvalue()


def _cell(cell: Any) -> Any:
    return spreadsheet_cell(printable(cell)) if isinstance(cell, str) else cell

"""Two traces side by side: what got slower and what faster, by kind."""

from collections.abc import Sequence
from typing import Any

from ridgeline import units
from ridgeline.records.trace import Difference, TraceComparison
from ridgeline.report.document import (
    Block,
    Column,
    Document,
    Figures,
    Paragraph,
    Report,
    Row,
    Section,
    Span,
    Table,
    prose,
    row,
)
from ridgeline.report.numbers import MIN_EXACT_SHARE, time
from ridgeline.report.plain import kernel_name
from ridgeline.report.views.trace import check_paragraph
from ridgeline.report.views.trace_data import LeftOut, left_out_files, numbers, record_data

SCHEMA = "ridgeline.trace-comparison/1"
KINDS = {
    "total": "all in all",
    "cause": "idle time by cause",
    "phase": "phases",
    "category": "kinds of device work",
    "kernel": "kernels",
    "op": "operators",
    "module": "modules",
}
SHORT_ROWS = 8
MAX_PERCENT_FACTOR = 10
"""A larger increase is printed as a factor, because its percentage would be hard to read."""
_FIGURES = ("of", "name", "before_ms", "after_ms", "change_ms", "before_count", "after_count")


def trace_comparison_report(c: TraceComparison, left_out: Sequence[LeftOut] = ()) -> Report:
    return Report(
        document=lambda: document(c), data=lambda: data(c, left_out), figures=lambda: figures(c)
    )


def document(c: TraceComparison) -> Document:
    windows = f"{time(c.before_ns)} before, {time(c.after_ns)} after"
    blocks: list[Block] = [check_paragraph(check) for check in c.validation]
    for kind, title in KINDS.items():
        rows = tuple(_row(d) for d in c.differences if d.of == kind)
        if rows:
            blocks.append(Section(title=title, blocks=(_table(kind, rows),)))
    if c.note:
        blocks.append(Paragraph(prose(c.note), "quiet"))
    return Document(
        answer=(Span(c.verdict or windows, bold=True),),
        about=_about(c),
        blocks=tuple(blocks),
        footer=SCHEMA,
    )


def _about(c: TraceComparison) -> tuple[str, ...]:
    files = f"{c.before} → {c.after}"
    if not any(d.of == "total" for d in c.differences):
        return (files,)  # the windows are of different things
    ratio = f" ({units.significant(c.before_ns / c.after_ns)} ×)" if c.after_ns > 0 else ""
    per = "a step" if c.per == "step" else "the whole trace"
    return (files, f"{per}: {time(c.before_ns)} → {time(c.after_ns)}{ratio}")


def _table(kind: str, rows: tuple[Row, ...]) -> Table:
    is_counted = kind not in ("total", "phase")
    columns = (
        Column(kind if kind != "total" else "", "name"),
        *numbers("before", "after", "change"),
        Column("times before", spare=1 if is_counted else 2),
        Column("times after", spare=1 if is_counted else 2),
    )
    return Table(columns=columns, rows=rows, short=SHORT_ROWS)


def _row(d: Difference) -> Row:
    change = d.change_ns
    sign = "+" if change > 0 else ""
    text = f"{sign}{time(change)}" if change else "0 s"
    if not d.before_ns:
        text += " new"
    elif not d.after_ns:
        text += " gone"
    elif d.after_ns >= MAX_PERCENT_FACTOR * d.before_ns:
        text += f" {units.count(d.after_ns / d.before_ns)} ×"
    elif abs(change) >= MIN_EXACT_SHARE * d.before_ns:
        text += f" {sign}{units.percent(change / d.before_ns)}"
    return row(
        kernel_name(d.name) if d.of == "kernel" else d.name, time(d.before_ns),
        time(d.after_ns), text, units.significant(d.before_count),
        units.significant(d.after_count),
    )  # fmt: skip


def data(c: TraceComparison, left_out: Sequence[LeftOut] = ()) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "before": c.before,
        "after": c.after,
        "left_out": left_out_files(left_out),
        "per": c.per,
        "verdict": c.verdict,
        "before_ms": c.before_ns / 1e6,
        "after_ms": c.after_ns / 1e6,
        "change_ms": (c.after_ns - c.before_ns) / 1e6,
        "validation": [record_data(check) for check in c.validation],
        "differences": [_difference(d) for d in c.differences],
        "note": c.note,
    }


def _difference(d: Difference) -> dict[str, Any]:
    return {"of": d.of, "name": d.name, "before_ms": d.before_ns / 1e6,
            "after_ms": d.after_ns / 1e6, "change_ms": d.change_ns / 1e6,
            "before_count": d.before_count, "after_count": d.after_count}  # fmt: skip


def figures(c: TraceComparison) -> Figures:
    rows = (_difference(d) for d in c.differences)
    return Figures(_FIGURES, [[row[key] for key in _FIGURES] for row in rows])

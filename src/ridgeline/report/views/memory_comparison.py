"""Two studies of memory side by side: what needs more at the peak, and what less."""

import re
from typing import Any

import msgspec

from ridgeline import units
from ridgeline.records.memory import MemoryChange, MemoryComparison, MemoryKind
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Detail,
    Document,
    Figures,
    Paragraph,
    Report,
    Row,
    Section,
    Span,
    Table,
    row,
)
from ridgeline.report.memory_reasons import KIND_NAMES
from ridgeline.report.plain import place_name
from ridgeline.report.reasons import explain
from ridgeline.report.views.memory import place_or_reason

SCHEMA = "ridgeline.memory-comparison/1"
TITLES = {"total": "in all", "kind": "by kind", "line": "by line", "module": "by module"}
TOTALS = {"peak": "peak", "reserved": "reserved at the peak", "stuck": "free beside blocks in use"}
SHORT_ROWS = 8
MIN_CHANGE_SHARE = 0.005
"""A smaller change of the peak is called none."""
_FIGURES = ("of", "name", "file", "line", "function", "kind", "before_bytes", "after_bytes",
            "change_bytes")  # fmt: skip


def memory_comparison_report(comparison: MemoryComparison) -> Report:
    return Report(
        document=lambda: document(comparison),
        data=lambda: data(comparison),
        figures=lambda: figures(comparison),
    )


def headline(comparison: MemoryComparison) -> str:
    """Return how the peak changed, and what changed most."""
    peak = comparison.changes[0]
    sizes = f"{units.bytes_(peak.before_bytes)} → {units.bytes_(peak.after_bytes)}"
    if abs(peak.change_bytes) <= MIN_CHANGE_SHARE * max(peak.before_bytes, 1):
        text = f"the peak is the same: {sizes}"
    else:
        share = units.percent(abs(peak.change_bytes) / max(peak.before_bytes, 1))
        more = "more" if peak.change_bytes > 0 else "less"
        text = f"the peak needs {units.bytes_(abs(peak.change_bytes))} ({share}) {more}: {sizes}"
    lines = [c for c in comparison.changes if c.of == "line" and c.change_bytes]
    if not lines or abs(lines[0].change_bytes) < MIN_CHANGE_SHARE * max(peak.before_bytes, 1):
        return text
    return f"{text}; most of it {_name(lines[0])}, {_signed(lines[0].change_bytes)}"


def document(comparison: MemoryComparison) -> Document:
    blocks: list[Block] = []
    for study in (comparison.before, comparison.after):
        notes = [explain(reason) for reason in study.notes]
        if notes:
            blocks.append(Paragraph(f"{_file(study.source)}: {'; '.join(notes)}", "doubt"))
    for of, title in TITLES.items():
        rows = tuple(_row(change) for change in comparison.changes if change.of == of)
        if rows:
            columns = (
                Column(of if of != "total" else "", "place" if of == "line" else "name", -1),
                Column("kind" if of == "line" else "", "words", spare=0 if of == "line" else 2),
                Column("before"), Column("after"), Column("change", spare=-1),
            )  # fmt: skip
            detail: Detail = "full" if of == "module" else "brief"
            table = Table(columns=columns, rows=rows, short=SHORT_ROWS)
            blocks.append(Section(title=title, blocks=(table,), detail=detail))
    before, after = comparison.before, comparison.after
    return Document(
        answer=(Span(headline(comparison), bold=True),),
        about=(
            f"{_file(before.source)} {comparison.before_device} → "
            f"{_file(after.source)} {comparison.after_device}",
        ),
        blocks=tuple(blocks),
        footer=SCHEMA,
    )


def _file(source: str) -> str:
    return re.split(r"[/\\]", source)[-1]


def _name(change: MemoryChange) -> str:
    if change.of == "line":
        return place_name(change.place) or place_or_reason(change.kind)
    if change.of == "kind":
        return KIND_NAMES[MemoryKind(change.name)][0]
    return TOTALS.get(change.name, change.name)


def _row(change: MemoryChange) -> Row:
    text = _signed(change.change_bytes)
    if not change.before_bytes:
        text += " new"
    elif not change.after_bytes:
        text += " gone"
    elif change.change_bytes:
        sign = "+" if change.change_bytes > 0 else ""
        text += f" {sign}{units.percent(change.change_bytes / change.before_bytes)}"
    return row(
        _name(change),
        change.kind.value if change.kind is not None else "",
        Cell(units.bytes_(change.before_bytes), change.before_bytes),
        Cell(units.bytes_(change.after_bytes), change.after_bytes),
        Cell(text, change.change_bytes),
        minor=not change.change_bytes,
    )


def _signed(size: int) -> str:
    return f"{'+' if size > 0 else ''}{units.bytes_(size)}"


def data(comparison: MemoryComparison) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "answer": headline(comparison),
        "before": {"source": comparison.before.source, "device": comparison.before_device},
        "after": {"source": comparison.after.source, "device": comparison.after_device},
        "changes": [
            {**msgspec.to_builtins(change), "change_bytes": change.change_bytes}
            for change in comparison.changes
        ],
    }


def figures(comparison: MemoryComparison) -> Figures:
    rows = []
    for change in comparison.changes:
        place = change.place
        spot = (place.file, place.line, place.function) if place else ("", None, "")
        kind = change.kind.value if change.kind is not None else ""
        sizes = (change.before_bytes, change.after_bytes, change.change_bytes)
        rows.append([change.of, change.name, *spot, kind, *sizes])
    return Figures(_FIGURES, rows)

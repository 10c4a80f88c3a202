"""A document as a page of its own: nothing is fetched, no script runs, light or dark as the reader
has it."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup, escape

from ridgeline.report.document import (
    Claim,
    Code,
    Document,
    ForestChart,
    Item,
    Row,
    Section,
    Table,
    item,
    plain,
)
from ridgeline.report.plain import printable, shorten
from ridgeline.report.renderers.charts import draw

OPEN_ROWS = 15
"""Rows of a table that are shown at once; more are folded away."""
USUAL_ROWS, MAX_ROWS = 50, 500
"""Rows of a table: as a rule, and where all were asked for."""
MAX_PAGE_BYTES = 2_000_000
"""A browser opens a page of this size at once, and a ticket takes it."""
MAX_NAME_LENGTH, MAX_NARROW_NAME_LENGTH = 56, 28
"""Letters of a name: alone in its table, or beside two others. The whole name is in the tip."""
MAX_PLACE_LENGTH = 120
"""The number at the end of a place must be seen."""


def render(document: Document, *, full: bool = False, max_rows: int | None = None) -> str:
    """Return the page. `full` shows all rows of each table, `max_rows` that many; fewer where the
    page would grow too large to be opened or attached."""
    rows = min(max_rows or (MAX_ROWS if full else USUAL_ROWS), MAX_ROWS)
    hint = "; --json has them" if full else ""
    page = _page(document, rows, hint)
    while len(page.encode()) > MAX_PAGE_BYTES and rows > OPEN_ROWS:
        rows = max(rows // 2, OPEN_ROWS)
        page = _page(document, rows, hint)
    return page


def _page(document: Document, rows: int, hint: str) -> str:
    template = _environment().get_template("page.html.jinja")
    return template.render(
        document=document,
        title=document.title or document.answer_text,
        open_rows=OPEN_ROWS,
        max_rows=rows,
        hint=hint,
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ridgeline.report.renderers", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        safe_text=printable,
        kind=lambda block: type(block).__name__,
        drawing=lambda block: Markup(draw(block)),
        chart_title=_chart_title,
        caption=_caption,
        folded_title=_folded_title,
        used_columns=_used_columns,
        shown_rows=_shown_rows,
        row_classes=_row_classes,
        cell_classes=_cell_classes,
        cell=_cell,
        code_text=_code_text,
        code_block=_code_block,
        evidence=_evidence,
    )
    return environment


def _chart_title(chart: Any) -> str:
    title = getattr(chart, "title", "")
    return title if type(chart).__name__ in ("ForestChart", "SamplesChart", "RoundsChart") else ""


def _caption(chart: Any) -> str:
    if isinstance(chart, ForestChart):
        return f"Shaded: {chart.band_meaning}."
    if type(chart).__name__ == "SamplesChart":
        return "One dot a round; each strip has a scale of its own; dashed: the median."
    return str(getattr(chart, "caption", ""))


def _folded_title(section: Section) -> str:
    """Return the title of a section that is folded away, with the number of rows inside."""
    tables = [block for block in section.blocks if isinstance(block, Table)]
    rows = sum(len(table.rows) + table.unseen + table.left_out for table in tables)
    return f"{section.title} ({rows:,})" if rows else section.title


@jinja2.pass_context
def _shown_rows(context: jinja2.runtime.Context, table: Table) -> dict[str, Any]:
    max_rows, hint = context["max_rows"], context["hint"]
    rows = table.rows[:max_rows]
    hidden = len(table.rows) - len(rows) + table.unseen
    more = ""
    if hidden + table.left_out:
        where = hint or f", {table.hint}"
        if hidden and table.left_out:
            where = f"{where} ({hidden:,} of them)"
        rest = f", {table.rest}" if table.rest else ""
        more = f"and {hidden + table.left_out:,} more{where if hidden else rest}"
    return {"rows": rows, "more": more}


def _used_columns(table: Table, rows: Sequence[Row]) -> list[int]:
    return [
        i for i in range(len(table.columns)) if i == 0 or any(row.cells[i].text for row in rows)
    ]


def _row_classes(row: Row) -> str:
    names = ("quiet" * (row.tone == "quiet"), "bold" * row.bold, "open" * bool(row.note))
    return " ".join(name for name in names if name)


def _cell_classes(table: Table, row: Row, i: int) -> str:
    cell, column = row.cells[i], table.columns[i]
    kind = column.kind if i or column.kind != "number" else "words"
    tone = cell.tone if cell.tone != "plain" else ""
    return " ".join(x for x in (kind, tone, "verdict" if tone else "", "bold" * cell.bold) if x)


def _cell(table: Table, row: Row, i: int) -> str:
    """Return a cell. Long names are cut, and whole in the tip; the indent of a tree is kept."""
    text = printable(row.cells[i].text)
    kind = table.columns[i].kind
    names = sum(column.kind in ("name", "place") for column in table.columns)
    limit = MAX_NARROW_NAME_LENGTH if names > 2 else MAX_NAME_LENGTH
    limit = limit if kind == "name" else MAX_PLACE_LENGTH
    bare = text.lstrip(" ")
    indent = Markup("&nbsp;") * (2 * (len(text) - len(bare)))
    if len(bare) <= limit or kind not in ("name", "place"):
        return indent + escape(bare)
    return indent + Markup('<span title="{}">{}</span>').format(bare, shorten(bare, limit))


def _code_text(text: str) -> str:
    lines = ("\t".join(map(printable, line.rstrip("\r").split("\t"))) for line in text.split("\n"))
    return "\n".join(lines).rstrip("\n")


def _code_block(code: Code) -> str:
    text = _code_text(code.text)
    if code.language != "diff":
        return text
    span = Markup('<span class="{}">{}</span>')
    return Markup("\n").join(span.format(_diff_class(line), line) for line in text.split("\n"))


def _diff_class(line: str) -> str:
    if line.startswith(("--- ", "+++ ", "@@")):
        return "place"
    return {"+": "plus", "-": "minus"}.get(line[:1], "same")


def _evidence(claim: Claim) -> list[Item]:
    doubt = [item("may be wrong", claim.doubt)] if plain(claim.doubt) else []
    return [*claim.evidence, *doubt]

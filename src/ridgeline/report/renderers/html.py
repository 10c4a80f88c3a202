"""A document as a page of its own: nothing is fetched, and it is light or dark as the reader has
it. Its sentences, tables and small pictures need no script. The one script in the page draws
figures and sorts tables, and the page's policy lets no other run."""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, get_args

import jinja2
import msgspec
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
from ridgeline.report.drawings import Drawing
from ridgeline.report.glossary import TERMS
from ridgeline.report.plain import printable, shorten
from ridgeline.report.renderers.charts import draw

OPEN_ROWS = 15
"""Rows of a table that are shown at once; more are folded away."""
USUAL_ROWS, MAX_ROWS = 200, 500
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
        style=Markup(asset("style.css")),
        script=Markup(asset("page.js")),
        script_hash=_script_hash(),
    )


@cache
def asset(name: str) -> str:
    """Return the script or the style of pages, as `web/` builds them."""
    return files("ridgeline.report.renderers").joinpath("assets", name).read_text("utf-8")


@cache
def _script_hash() -> str:
    """Return how the page's policy names the only script that may run."""
    digest = hashlib.sha256(asset("page.js").encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


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
        diff_text=_diff_text,
        evidence=_evidence,
        is_drawing=lambda block: isinstance(block, _DRAWINGS),
        payload=_payload,
        anchor=_anchor,
        section_links=_section_links,
        explained=_explained,
    )
    return environment


_DRAWINGS = get_args(Drawing) or (Drawing,)
_TERM = re.compile(rf"\b({'|'.join(sorted(map(re.escape, TERMS), key=len, reverse=True))})\b", re.I)


def _payload(drawing: Drawing) -> Markup:
    """Return a figure's data as JSON that cannot end the element it stands in."""
    text = msgspec.json.encode(_readable(msgspec.to_builtins(drawing))).decode()
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028"))


def _readable(value: Any) -> Any:
    """Return the value with every text made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_readable(name): _readable(one) for name, one in value.items()}
    if isinstance(value, list | tuple) and any(
        isinstance(one, str | dict | list | tuple) for one in value
    ):
        return [_readable(one) for one in value]
    return value


def _anchor(section: Section) -> str:
    return section.id or re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")


def _section_links(document: Document) -> list[Section]:
    """Return the sections that a reader may jump to."""
    found = [block for block in document.blocks if isinstance(block, Section)]
    return [one for one in found if one.title and not one.folded]


def _explained(text: str) -> Markup:
    """Return a text in which the first term of the glossary is explained to whoever hovers."""
    text = printable(text)
    found = _TERM.search(text)
    if found is None:
        return escape(text)
    term = found.group()
    tip = Markup('<abbr title="{}">{}</abbr>').format(TERMS[term.lower()], term)
    return escape(text[: found.start()]) + tip + escape(text[found.end() :])


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
    return " ".join(
        x
        for x in (
            kind,
            tone,
            "verdict" if tone else "",
            "bold" * cell.bold,
            "bar" * (cell.bar is not None),
        )
        if x
    )


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
    return _marked_lines(text) if code.language == "diff" else text


def _diff_text(text: str) -> Markup:
    return _marked_lines(_code_text(text))


def _marked_lines(text: str) -> Markup:
    """Return the lines of a diff, each with its class. Their signs stay, as not everyone sees the
    colours."""
    span = Markup('<span class="{}">{}</span>')
    return Markup("\n").join(span.format(_diff_class(line), line) for line in text.split("\n"))


def _diff_class(line: str) -> str:
    if line.startswith(("--- ", "+++ ", "@@")):
        return "place"
    return {"+": "plus", "-": "minus"}.get(line[:1], "same")


def _evidence(claim: Claim) -> list[Item]:
    doubt = [item("may be wrong", claim.doubt)] if plain(claim.doubt) else []
    return [*claim.evidence, *doubt]

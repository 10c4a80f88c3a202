"""Documents as text, for tests."""

import io
import re
from typing import Any

from rich.console import Console

from ridgeline.cli.output import formatted
from ridgeline.records.finding import Findings
from ridgeline.records.trace import TraceStudy
from ridgeline.report.document import Document, Section, Table, plain
from ridgeline.report.renderers import html, terminal
from ridgeline.report.views.trace import trace_report

FETCHED = re.compile(r"""(?:src|href)\s*=\s*["']?(?!["']?#)|url\(|@import""")
"""Whatever a browser would fetch. A link to a part of the page fetches nothing."""


def at_terminal(
    document: Document, width: int = 120, *, full: bool = False, max_rows: int | None = None,
    encoding: str = "utf-8",
) -> str:  # fmt: skip
    """Return what a terminal without colours shows."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console = Console(file=out, width=width, highlight=False, no_color=True)
    terminal.render(document, console, full=full, max_rows=max_rows)
    out.flush()
    return out.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def trace_at_terminal(
    study: TraceStudy, width: int = 120, findings: Findings | None = None, *, full: bool = False,
    max_rows: int | None = None,
) -> str:  # fmt: skip
    """Return what a terminal shows of a trace."""
    report = trace_report(study, findings, full=full, max_rows=max_rows)
    return at_terminal(report.document(), width, full=full, max_rows=max_rows)


def trace_as(
    ending: str, study: TraceStudy, findings: Findings | None = None, *, full: bool = False,
    max_rows: int | None = None,
) -> str:  # fmt: skip
    """Return the file of a trace's report with this ending."""
    report = trace_report(study, findings, full=full, max_rows=max_rows)
    text = formatted(report, ending, full=full, max_rows=max_rows)
    return bare(text) if ending == ".html" else text


def tables(document: Document) -> list[Table]:
    """Return every table of a document, also those inside sections."""
    return [block for block in blocks(document) if isinstance(block, Table)]


def blocks(document: Document | Section) -> list[Any]:
    """Return every block of a document, sections before what is in them."""
    found: list[Any] = []
    for block in document.blocks:
        found.append(block)
        if isinstance(block, Section):
            found += blocks(block)
    return found


def grid(table: Table) -> list[list[str]]:
    """Return the texts of a table, without its header."""
    return [[cell.text for cell in row.cells] for row in table.rows]


def sentences(document: Document) -> list[str]:
    """Return the text of every paragraph and every labelled line."""
    found = []
    for block in blocks(document):
        if hasattr(block, "text") and hasattr(block, "level"):
            found.append(plain(block.text))
        for item in getattr(block, "items", ()):
            found += [plain(line) for line in item.lines]
    return found


def bare_page(document: Document, **options: Any) -> str:
    """Return a page without the script and the style that all pages carry."""
    return bare(html.render(document, **options))


def bare(page: str) -> str:
    """Return the page without its one script and its style, which must be those that were built."""
    script, style = f"<script>{html.asset('page.js')}</script>", html.asset("style.css")
    assert page.count(script) == page.count(style) == 1
    return page.replace(script, "").replace(style, "")

"""A trace's report as Markdown: the verdict, the warnings, the main tables; the rest is folded."""

from collections.abc import Iterable, Sequence

from ridgeline.records.finding import Findings
from ridgeline.records.trace import TraceStudy
from ridgeline.report.cells import markdown_cell
from ridgeline.report.finding_markdown import answers_markdown, findings_markdown
from ridgeline.report.plain import printable, shorten
from ridgeline.report.trace_grid import Column, Section, share, time
from ridgeline.report.trace_headline import about, loud, parts, quiet, said, verdict
from ridgeline.report.trace_sections import FEW, sections

WIDEST = 100
"""Characters of a cell; kernels' names are longer than a comment is wide."""


def to_markdown(
    study: TraceStudy,
    findings: Findings | None = None,
    *,
    full: bool = False,
    most: int | None = None,
) -> str:
    """A few rows of each table; `full`: all of them, `most`: that many."""
    lines = [
        f"### {markdown_cell(verdict(study))}",
        "",
        markdown_cell(" · ".join(about(study))),
        "",
    ]
    lines += _list(f"**{c.severity}**: {markdown_cell(said(c))}" for c in loud(study))
    lines += _split(study)
    lines += _findings(findings)
    for section in sections(study, None if full else max(most or 0, FEW)):
        lines += _section(section, full, most)
    lines += _list(
        [*(f"missing: {markdown_cell(printable(text))}" for text in study.missing),
         *(f"note: {markdown_cell(said(c))}" for c in quiet(study))]
    )  # fmt: skip
    return "\n".join(lines).rstrip("\n") + "\n"


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> list[str]:
    """A blank header is allowed by GitHub, an empty table is not made."""
    rules = ["---:" if c.sort == "number" else "---" for c in columns]
    body = [_line(markdown_cell(shorten(cell, WIDEST)) for cell in row) for row in rows]
    return [_line(markdown_cell(c.name) for c in columns), _line(rules), *body]


def _findings(findings: Findings | None) -> list[str]:
    """None: nobody looked."""
    if findings is None:
        return []
    answers = answers_markdown(findings)
    told = ["#### the five questions", "", *answers] if answers else []
    return ["#### what holds it back", "", *findings_markdown(findings), *told]


def _split(study: TraceStudy) -> list[str]:
    found = parts(study)
    total = sum(p.ns for p in found)
    if not total:
        return []
    said = " · ".join(
        f"**{p.name}** {markdown_cell(share(p.ns / total))} ({time(p.ns)})" for p in found
    )
    return [said, ""]


def _section(section: Section, full: bool, most: int | None) -> list[str]:
    if not section.told and not section.doubt:
        return []
    body = [f"*{markdown_cell(section.doubt)}*", ""] if section.doubt else []
    for text in section.says:
        body += [markdown_cell(text), ""]
    rows, more = section.shown(full, most)
    if rows:
        body += [*table(section.columns, rows), ""]
    if more:
        body += [more, ""]
    for text in section.notes:
        body += [markdown_cell(text), ""]
    title = markdown_cell(section.title)
    if section.rows and not section.short:
        # GitHub reads Markdown inside <details> only after an empty line
        return [f"<details><summary>{title}</summary>", "", *body, "</details>", ""]
    return [f"#### {title}", "", *body]


def _list(items: Iterable[str]) -> list[str]:
    found = [f"- {item}" for item in items]
    return [*found, ""] if found else []


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

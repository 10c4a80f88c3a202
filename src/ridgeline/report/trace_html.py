"""A trace's report as a page of its own: nothing is fetched, no script runs."""

from collections.abc import Sequence
from html import escape

from ridgeline.records.finding import Findings
from ridgeline.records.trace import TraceStudy
from ridgeline.report import finding_html
from ridgeline.report import trace_plot as plot
from ridgeline.report.finding_html import answers_html, findings_html
from ridgeline.report.page import page
from ridgeline.report.plain import printable, shorten
from ridgeline.report.trace_document import SCHEMA
from ridgeline.report.trace_grid import Section
from ridgeline.report.trace_headline import about, loud, quiet, said, verdict
from ridgeline.report.trace_sections import sections

OPEN_ROWS = 15
"""Rows shown at once; more are folded away."""
USUAL_ROWS, MOST_ROWS = 50, 500
"""Rows of a table: as a rule, and where all were asked for."""
MOST_CURVES = 16
"""Of memory, of as many ranks."""
MOST_BYTES = 2_000_000
"""Of the page, so that a browser opens it at once and a ticket takes it."""
WIDEST, NARROW = 56, 28
"""Characters of a name: alone in its table, or beside two others. The whole is in the tip."""
LONGEST_LINE = 120
"""Of a line of code the number at its end must be seen."""
_STYLE = (
    "body { max-width: 76rem; } main h1 { font-size: 1.45rem; }"
    "td.name, td.place, td.words, td:first-child { white-space: nowrap; min-width: 0; }"
    "main table { font-size: 0.88rem; } main th, main td { padding-right: 1rem; }"
)
_MARKS = {"error": "bad", "warning": "warning", "note": "note"}


def to_html(
    study: TraceStudy,
    findings: Findings | None = None,
    *,
    full: bool = False,
    most: int | None = None,
) -> str:
    """`full`: all rows of each table, `most`: that many; fewer where the page would grow too large
    to be opened or attached."""
    wanted = min(most or (MOST_ROWS if full else USUAL_ROWS), MOST_ROWS)
    where = "; --json has them" if full else ", with --full"
    made = _page(study, findings, wanted, where)
    while len(made.encode()) > MOST_BYTES and wanted > OPEN_ROWS:
        wanted = max(wanted // 2, OPEN_ROWS)
        made = _page(study, findings, wanted, where)
    return made


def _page(study: TraceStudy, findings: Findings | None, most: int, where: str) -> str:
    found = sections(study, most)
    causes = findings_html(findings) + answers_html(findings) if findings is not None else ""
    drawn = {
        "idle": _figure(plot.gaps(study), "The longest gaps along the window; green is busy or "
                        "a shorter gap."),
        "roofline": _figure(plot.roofline(study.roofline), "Rate over intensity of each operator, "
                            "with its ceilings."),
        "memory": "".join(_figure(plot.memory(m), printable(f"{m.device}; dashed: reserved"))
                          for m in study.memory[:MOST_CURVES]),
    }  # fmt: skip
    body = "".join(
        [
            f"<style>{plot.STYLE}{_STYLE}{finding_html.STYLE}</style><main>",
            f"<h1>{escape(verdict(study))}</h1>",
            f'<p class="soft">{escape(" · ".join(about(study)))}</p>',
            f'<p class="soft">{escape(printable(study.window.note))}</p>',
            _checks([(c.severity, said(c)) for c in loud(study)]),
            _figure(plot.split(study), ""),
            causes,
            *(_section(s, drawn.get(s.id, ""), most, where) for s in found if s.told or s.doubt),
            _missing(study),
            _empty([s for s in found if not s.told and not s.doubt]),
            _checks([(c.severity, said(c)) for c in quiet(study)]),
            f"</main><footer>{escape(SCHEMA)}</footer>",
        ]
    )
    return page(f"{study.label and printable(study.label)}: {verdict(study)}", body)


def _section(section: Section, drawn: str, most: int, where: str) -> str:
    rows = section.rows[:most]
    left = _left(section, most, where)
    head = f"<h2>{escape(section.title)}</h2>"
    doubt = f'<p class="unsure">{escape(section.doubt)}</p>' if section.doubt else ""
    says = "".join(f"<p>{escape(text)}</p>" for text in section.says)
    notes = "".join(f'<p class="soft">{escape(text)}</p>' for text in section.notes)
    if section.rows and not section.short:
        title = f"{section.title} ({len(section.rows) + section.behind + section.left_out:,})"
        inside = f"{doubt}{says}{_table(section, rows)}{left}{notes}"
        return f"<details><summary>{escape(title)}</summary>{inside}</details>"
    return f"{head}{doubt}{says}{drawn}{_tables(section, rows)}{left}{notes}"


def _left(section: Section, most: int, where: str) -> str:
    hidden = len(section.rows[most:]) + section.behind
    if not hidden + section.left_out:
        return ""
    rest = f", {section.rest}" if section.rest else ""
    if hidden and section.left_out:
        where = f"{where} ({hidden:,} of them)"
    said = f"and {hidden + section.left_out:,} more{where if hidden else rest}"
    return f'<p class="soft">{escape(said)}</p>'


def _tables(section: Section, rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    first = _table(section, rows[:OPEN_ROWS])
    if len(rows) <= OPEN_ROWS:
        return first
    rest = _table(section, rows[OPEN_ROWS:])
    return f"{first}<details><summary>{len(rows) - OPEN_ROWS:,} more</summary>{rest}</details>"


def _table(section: Section, rows: Sequence[Sequence[str]]) -> str:
    kept = [i for i in range(len(section.columns)) if any(row[i] for row in rows)]
    kinds = [f' class="{c.sort}"' for c in section.columns]
    names = [i for i in kept if section.columns[i].sort in ("name", "place")]
    name = NARROW if len(names) > 2 else WIDEST
    widest = [name if c.sort == "name" else LONGEST_LINE for c in section.columns]
    head = "".join(f"<th{kinds[i]} scope=col>{escape(section.columns[i].name)}</th>" for i in kept)
    body = "".join(
        f"<tr>{''.join(f'<td{kinds[i]}>{_cell(row[i], widest[i])}</td>' for i in kept)}</tr>"
        for row in rows
    )
    made = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{made}</div>'


def _cell(text: str, widest: int) -> str:
    """Long names are cut, and whole in the tip; a tree's indent is kept."""
    indent = "&nbsp;" * 2 * (len(text) - len(text.lstrip(" ")))
    bare = text.lstrip(" ")
    if len(bare) <= widest:
        return indent + escape(bare)
    return f'{indent}<span title="{escape(bare)}">{escape(shorten(bare, widest))}</span>'


def _checks(found: Sequence[tuple[str, str]]) -> str:
    items = "".join(
        f'<li class="{_MARKS[severity]}"><b>{severity}</b> {escape(words)}</li>'
        for severity, words in found
    )
    return f'<ul class="notes">{items}</ul>' if items else ""


def _figure(drawing: str, caption: str) -> str:
    said = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="scroll">{drawing}{said}</figure>' if drawing else ""


def _empty(found: Sequence[Section]) -> str:
    rows = "".join(
        f"<dt>{escape(s.title)}</dt><dd>{escape(s.empty)}</dd>" for s in found if s.empty
    )
    return f"<details><summary>Nothing to show</summary><dl>{rows}</dl></details>" if rows else ""


def _missing(study: TraceStudy) -> str:
    items = "".join(f"<li>{escape(printable(text))}</li>" for text in study.missing)
    return f'<h2>Not in this trace</h2><ul class="notes">{items}</ul>' if items else ""

"""A trace's report for people at a terminal: the verdict, why the device idled, then what ran.

The short view fits about two screens; `full` shows every section and every row.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ridgeline.records.finding import Findings
from ridgeline.records.trace import TraceStudy
from ridgeline.report.finding_terminal import answer_rows, finding_rows
from ridgeline.report.plain import printable
from ridgeline.report.trace_bar import bar
from ridgeline.report.trace_grid import Section
from ridgeline.report.trace_headline import about, loud, parts, quiet, said, verdict
from ridgeline.report.trace_next import next_commands
from ridgeline.report.trace_sections import FEW, sections
from ridgeline.report.trace_table import print_table, table
from ridgeline.report.views.findings import shown_findings
from ridgeline.report.wrapping import wrapped

MOST_WARNINGS = 6
NARROW = 80
"""Columns below which a sentence stands under its title, not beside it."""
_TONES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def show(
    study: TraceStudy,
    console: Console,
    findings: Findings | None = None,
    *,
    full: bool = False,
    most: int | None = None,
    typed: Sequence[str] = (),
) -> None:
    """`most`: rows of each table; `typed`: the command line after `ridgeline`, to type next."""
    _headline(study, console)
    _warnings(study, console, full)
    _bar(study, console)
    if findings is not None:
        _findings(findings, console)
    lines: list[Section] = []
    for section in sections(study, None if full else max(most or 0, FEW)):
        if not full and _said_elsewhere(section, study):
            continue
        if _is_line(section, full):
            lines.append(section)
        else:
            _lines(lines, console, full)
            lines = []
            _section(section, console, full, most)
    _lines(lines, console, full)
    _missing(study, console)
    _next(study, findings, console, full, typed)


def say(markup: str, console: Console, indent: int = 1, style: str = "") -> None:
    """A paragraph, wrapped inside the margin, without blanks at the ends of its lines."""
    for line in _wrapped(markup, console, indent, style):
        console.print(Text(" " * indent) + line, soft_wrap=True)


def _wrapped(markup: str, console: Console, indent: int, style: str = "") -> list[Text]:
    return wrapped(Text.from_markup(markup, style=style), console.width - indent, console)


def _headline(study: TraceStudy, console: Console) -> None:
    console.print()
    say(f"[bold]{escape(verdict(study))}[/bold]", console)
    say(escape(" · ".join(about(study))), console, style="dim")
    if study.window.note:
        say(escape(printable(study.window.note)), console, style="dim")


def _warnings(study: TraceStudy, console: Console, full: bool) -> None:
    found = loud(study)
    shown = found if full else found[:MOST_WARNINGS]
    if shown:
        console.print()
    for check in shown:
        word = f"[{_TONES[check.severity]}]{check.severity}[/]"
        say(f"{word}: {escape(said(check))}", console)
    if len(found) > len(shown):
        say(f"and {len(found) - len(shown)} more warnings, with --full", console, style="dim")
    if full:
        for check in quiet(study):
            say(f"note: {escape(said(check))}", console, style="dim")


def _bar(study: TraceStudy, console: Console) -> None:
    lines = bar(parts(study), console.width - 3)
    if lines:
        console.print()
    for line in lines:
        console.print(f"  {line}", highlight=False, soft_wrap=True)


_SWITCHES = ("record_shapes=True", "with_stack=True", "profile_memory=True")


def _said_elsewhere(section: Section, study: TraceStudy) -> bool:
    """An empty section says nothing that the first line or the last ones do not."""
    if section.told:
        return False
    missing = " ".join(study.missing)
    return not study.devices or any(s in section.doubt and s in missing for s in _SWITCHES)


def _is_line(section: Section, full: bool) -> bool:
    """Sentences without a table stand beside their title."""
    if full and not section.told:
        return True
    if not full and section.short == 0:
        return bool(section.brief)
    return not section.rows and bool(section.says or section.doubt)


def _lines(found: Sequence[Section], console: Console, full: bool) -> None:
    if not found:
        return
    beside = console.width >= NARROW
    wide = max(len(section.title) for section in found) + 3 if beside else 3
    console.print()
    for section in found:
        said = section.says or tuple(x for x in (section.empty,) if x)
        if section.brief and not full:
            said = (section.brief,)
        text = [escape(x) for x in (said if section.told or not section.doubt else ())]
        doubt = [f"[yellow]{escape(section.doubt)}[/yellow]"] if section.doubt else []
        lead = Text(f" {section.title}", style="bold")
        if not beside:
            console.print(lead, soft_wrap=True)
            lead = Text()
        for line in _wrapped("\n".join([*doubt, *text]), console, wide):
            lead.pad_right(wide - lead.cell_len)
            console.print(Text() + lead + line, soft_wrap=True)
            lead = Text()


def _section(section: Section, console: Console, full: bool, most: int | None) -> None:
    if not section.told or (not full and section.short == 0):
        return
    console.print()
    say(f"[bold]{escape(section.title)}[/bold]", console)
    if section.doubt:
        say(f"[yellow]{escape(section.doubt)}[/yellow]", console, 3)
    for sentence in section.says:
        say(escape(sentence), console, 3)
    rows, more = section.shown(full, most)
    if rows:
        print_table(table(section.columns, rows, console.width, full), console)
    if more:
        say(more, console, 3, style="dim")
    for note in section.notes:
        say(escape(note), console, 3, style="dim")


def _missing(study: TraceStudy, console: Console) -> None:
    if study.missing:
        console.print()
        say("[bold]not in this trace[/bold]", console)
    for sentence in study.missing:
        say(escape(printable(sentence)), console, 3, style="dim")


def _findings(findings: Findings, console: Console) -> None:
    for block in (finding_rows(findings, console), answer_rows(findings, console)):
        if block:
            console.print()
        for line in block:
            line.rstrip()
            console.print(line, soft_wrap=True)


def _next(
    study: TraceStudy,
    findings: Findings | None,
    console: Console,
    full: bool,
    typed: Sequence[str],
) -> None:
    console.print()
    first = next(iter(shown_findings(findings)), None) if findings is not None else None
    found = next_commands(study, typed, full)
    if first is not None:
        found = (("why, and the fix", f"ridgeline explain {printable(first.rule)}"), *found)
    for why, command in found:
        console.print(f" {why}:  [bold]{escape(command)}[/bold]", highlight=False, soft_wrap=True)

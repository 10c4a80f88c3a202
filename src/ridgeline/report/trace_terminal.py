"""A trace's report for people at a terminal: the verdict, why the device idled, then what ran.

The short view fits about two screens; `full` shows every section and every row.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from ridgeline.records.trace import TraceStudy
from ridgeline.report.plain import printable
from ridgeline.report.trace_bar import bar
from ridgeline.report.trace_grid import Section
from ridgeline.report.trace_headline import about, loud, parts, quiet, said, verdict
from ridgeline.report.trace_next import next_commands
from ridgeline.report.trace_sections import sections
from ridgeline.report.trace_table import table

MOST_WARNINGS = 6
_TONES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def show(
    study: TraceStudy,
    console: Console,
    *,
    full: bool = False,
    most: int | None = None,
    typed: Sequence[str] = (),
) -> None:
    """`most`: rows of each table; `typed`: the command line after `ridgeline`, to type next."""
    _headline(study, console)
    _warnings(study, console, full)
    _bar(study, console)
    lines: list[Section] = []
    for section in sections(study):
        if not (section.told or full or study.devices):
            continue  # without a device it is said once, in the first line
        if _is_line(section, full):
            lines.append(section)
        else:
            _lines(lines, console)
            lines = []
            _section(section, console, full, most)
    _lines(lines, console)
    _missing(study, console)
    _next(study, console, full, typed)


def say(markup: str, console: Console, indent: int = 1, style: str = "") -> None:
    """A paragraph, wrapped inside the margin."""
    console.print(Padding(markup, (0, 0, 0, indent), expand=False), highlight=False, style=style)


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


def _is_line(section: Section, full: bool) -> bool:
    """Sentences without a table stand beside their title."""
    if full and not section.told:
        return True
    if not full and section.short == 0:
        return bool(section.brief)
    return not section.rows and bool(section.says or section.doubt)


def _lines(found: Sequence[Section], console: Console) -> None:
    if not found:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for section in found:
        said = section.says or tuple(x for x in (section.brief or section.empty,) if x)
        text = escape("\n".join(said if section.told or not section.doubt else ()))
        doubt = f"[yellow]{escape(section.doubt)}[/yellow]" if section.doubt else ""
        body = "\n".join(x for x in (doubt, text) if x)
        grid.add_row(f" [bold]{escape(section.title)}[/bold]", body)
    console.print()
    console.print(grid, highlight=False)


def _section(section: Section, console: Console, full: bool, most: int | None) -> None:
    if not section.told or (not full and section.short == 0):
        return
    console.print()
    say(f"[bold]{escape(section.title)}[/bold]", console)
    if section.doubt:
        say(f"[yellow]{escape(section.doubt)}[/yellow]", console, 3)
    for sentence in section.says:
        say(escape(sentence), console, 3)
    rows = section.rows if full else section.rows[: most or section.short]
    if rows:
        console.print(table(section.columns, rows, console.width, full))
    hidden = len(section.rows) - len(rows)
    more = f"and {hidden + section.left_out:,} more" if hidden + section.left_out else ""
    if more:
        where = ", with --full" if hidden and not full else ""
        say(f"{more}{where}", console, 3, style="dim")
    for note in section.notes:
        say(escape(note), console, 3, style="dim")


def _missing(study: TraceStudy, console: Console) -> None:
    if study.missing:
        console.print()
        say("[bold]not in this trace[/bold]", console)
    for sentence in study.missing:
        say(escape(printable(sentence)), console, 3, style="dim")


def _next(study: TraceStudy, console: Console, full: bool, typed: Sequence[str]) -> None:
    console.print()
    for why, command in next_commands(study, typed, full):
        console.print(f" {why}:  [bold]{escape(command)}[/bold]", highlight=False, soft_wrap=True)

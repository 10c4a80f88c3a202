"""Two traces side by side, for terminals and as Markdown: what got slower, what faster, by kind."""

from rich.console import Console
from rich.markup import escape

from ridgeline import units
from ridgeline.records.trace import Difference, TraceComparison
from ridgeline.report.cells import markdown_cell
from ridgeline.report.names import kernel_name
from ridgeline.report.plain import printable
from ridgeline.report.trace_grid import LEAST_SHARE, Column, Section, number, time
from ridgeline.report.trace_headline import said
from ridgeline.report.trace_markdown import table as markdown_table
from ridgeline.report.trace_table import print_table, table
from ridgeline.report.trace_terminal import say

KINDS = {
    "total": "all in all",
    "cause": "idle time by cause",
    "phase": "phases",
    "category": "kinds of device work",
    "kernel": "kernels",
    "op": "operators",
    "module": "modules",
}
SHORT = 8
MANY = 10
"""From so many times on a percentage is hard to read."""


def show(
    c: TraceComparison, console: Console, *, full: bool = False, most: int | None = None
) -> None:
    console.print()
    say(f"[bold]{escape(_verdict(c))}[/bold]", console)
    say(escape(_about(c)), console, style="dim")
    for check in c.validation:
        word = f"[yellow]{check.severity}[/yellow]" if check.severity != "note" else "note"
        say(f"{word}: {escape(said(check))}", console)
    for section in _sections(c):
        console.print()
        say(f"[bold]{escape(section.title)}[/bold]", console)
        rows, more = section.shown(full, most)
        print_table(table(section.columns, rows, console.width, full), console)
        if more:
            say(more, console, 3, style="dim")
    if c.note:
        console.print()
        say(escape(printable(c.note)), console, style="dim")


def to_markdown(c: TraceComparison, *, full: bool = False, most: int | None = None) -> str:
    lines = [f"### {markdown_cell(_verdict(c))}", "", markdown_cell(_about(c)), ""]
    lines += [f"- **{k.severity}**: {markdown_cell(said(k))}" for k in c.validation]
    lines += [""] if c.validation else []
    for section in _sections(c):
        rows, more = section.shown(full, most)
        lines += [f"#### {markdown_cell(section.title)}", "",
                  *markdown_table(section.columns, rows), ""]  # fmt: skip
        lines += [more, ""] if more else []
    lines += [markdown_cell(printable(c.note)), ""] if c.note else []
    return "\n".join(lines).rstrip("\n") + "\n"


def _verdict(c: TraceComparison) -> str:
    if c.verdict:
        return printable(c.verdict)
    return f"{time(c.before_ns)} before, {time(c.after_ns)} after"


def _about(c: TraceComparison) -> str:
    files = f"{printable(c.before)} → {printable(c.after)}"
    if not any(d.of == "total" for d in c.differences):
        return files  # the windows are of different things
    ratio = f" ({units.significant(c.before_ns / c.after_ns)} ×)" if c.after_ns > 0 else ""
    per = "a step" if c.per == "step" else "the whole trace"
    return f"{files} · {per}: {time(c.before_ns)} → {time(c.after_ns)}{ratio}"


def _sections(c: TraceComparison) -> list[Section]:
    """A kind each, in order of what is read first; times are per what the comparison is per."""
    found = []
    for kind, title in KINDS.items():
        rows = tuple(_row(d) for d in c.differences if d.of == kind)
        if rows:
            counted = kind not in ("total", "phase")
            columns = (
                Column(kind if kind != "total" else "", "name"),
                *number("before", "after", "change"),
                Column("times before", spare=1 if counted else 2),
                Column("times after", spare=1 if counted else 2),
            )
            found.append(Section(id=kind, title=title, columns=columns, rows=rows, short=SHORT))
    return found


def _row(d: Difference) -> tuple[str, ...]:
    change = d.change_ns
    text = f"{'+' if change > 0 else ''}{time(change)}" if change else "0 s"
    if not d.before_ns:
        text += " new"
    elif not d.after_ns:
        text += " gone"
    elif d.after_ns >= MANY * d.before_ns:
        text += f" {units.count(d.after_ns / d.before_ns)} ×"
    elif abs(change) >= LEAST_SHARE * d.before_ns:
        text += f" {'+' if change > 0 else ''}{units.percent(change / d.before_ns)}"
    name = kernel_name(d.name) if d.of == "kernel" else printable(d.name)
    return (name, time(d.before_ns), time(d.after_ns), text,
            units.significant(d.before_count), units.significant(d.after_count))  # fmt: skip

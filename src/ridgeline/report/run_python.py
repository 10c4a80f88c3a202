"""The costliest lines of the user's own Python, for the terminal and for Markdown."""

import re
from collections.abc import Iterator

from msgspec import Struct
from rich.console import Console, ConsoleOptions
from rich.text import Text

from ridgeline import units
from ridgeline.records.run import PythonLine, PythonView
from ridgeline.report import trace_markdown
from ridgeline.report.plain import printable
from ridgeline.report.trace_grid import LEAST_SHARE, Column, share
from ridgeline.report.trace_table import table

_COLUMNS = (
    Column("line", "place"),
    Column("share", spare=-1),
    Column("time", spare=2),
    Column("in", "words"),
    Column("function", "name", spare=2),
    Column("source", "name"),
    Column("which calls", "name", spare=1),
)
_INDENT = 3
_WIDE = 120
"""Below it the text of a line needs the room of its function's name."""


class _Lines(Struct, frozen=True):
    """Laid out when the width is known."""

    view: PythonView
    limit: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        rows = _rows(self.view, self.limit)
        if rows:
            wide = options.max_width >= _WIDE
            kept = [i for i, column in enumerate(_COLUMNS) if wide or column.spare < 2]
            cells = [[row[i] for i in kept] for row in rows]
            laid = table([_COLUMNS[i] for i in kept], cells, options.max_width, full=True)
            yield Text(laid.lines[0], style="dim", no_wrap=True)
            yield Text("\n".join(laid.lines[1:]), no_wrap=True)
        note = Text(said(self.view), style="dim")
        for line in note.wrap(console, max(options.max_width - _INDENT, 10)):
            line.rstrip()
            yield Text(" " * _INDENT) + line


def lines_table(view: PythonView, limit: int = 8) -> _Lines:
    return _Lines(view, limit)


def lines_text(view: PythonView, limit: int = 8) -> list[str]:
    """Lines of Markdown."""
    rows = _rows(view, limit)
    return [*(trace_markdown.table(_COLUMNS, rows) if rows else ()), "", said(view)]


def said(view: PythonView) -> str:
    """What the shares are of."""
    if not view.main_samples + view.worker_samples:
        return "no sample of the Python code: too short a time"
    parts = []
    if view.main_samples:
        parts.append(f"{units.plural(view.main_samples, 'sample')} of the main process")
    if view.worker_samples:
        idle = units.percent(view.worker_idle_samples / view.worker_samples)
        waits = f", {idle} of them waiting for work, not counted" * bool(view.worker_idle_samples)
        parts.append(f"{view.worker_samples:,} of {units.plural(view.workers, 'worker')}{waits}")
    every = units.seconds(view.interval_ns / 1e9)
    none = "" if view.lines else "; none was in the user's own code"
    return f"{'; '.join(parts)}; one every {every}{none}"


def _rows(view: PythonView, limit: int) -> list[tuple[str, ...]]:
    worth = [line for line in view.lines if line.share >= LEAST_SHARE] or list(view.lines)
    return [_row(line, view) for line in worth[: max(limit, 0)]]


def _row(line: PythonLine, view: PythonView) -> tuple[str, ...]:
    file = "/".join(re.split(r"[\\/]", line.file)[-2:])
    return (
        printable(f"{file}:{line.line}"),
        share(line.share),
        units.seconds(line.seconds),
        "main" if line.process == "main" else units.plural(view.workers, "worker"),
        printable(line.function.replace("<locals>.", "")),
        printable(line.source),
        printable(line.calls),
    )

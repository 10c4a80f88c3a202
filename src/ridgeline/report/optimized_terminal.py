"""What trying changes came to, for people at a terminal: the answer first, then every change."""

from rich.console import Console
from rich.markup import escape

from ridgeline.records.optimized import Optimized
from ridgeline.report.model_growth import plain_table
from ridgeline.report.optimized_rows import Row, headline, notes, rows

_STYLES = {"kept": "green", "dropped": "yellow", "rejected": "red"}
_COLUMNS = ("", "change", "as fast", "results", "memory", "start", "why")


def show(found: Optimized, console: Console) -> None:
    style = "bold green" if found.total is not None else "bold"
    console.print(f" [{style}]{escape(headline(found))}[/]", highlight=False)
    for note in notes(found):
        console.print(f"   {escape(note)}", style="dim", highlight=False)
    told = rows(found.rungs)
    if not told:
        return
    console.print()
    table = plain_table()
    used = [at for at in range(len(_COLUMNS)) if any(_cells(row)[at] for row in told)]
    for at in used:
        table.add_column(_COLUMNS[at], overflow="fold")
    for row in told:
        cells = _cells(row)
        color = _STYLES.get(row.status, "dim")
        table.add_row(
            *(f"[{color}]{escape(cells[at])}[/]" if at < 2 else escape(cells[at]) for at in used)
        )
    console.print(table)


def _cells(row: Row) -> tuple[str, ...]:
    return row.status, row.change, row.faster, row.equal, row.memory, row.start, row.why

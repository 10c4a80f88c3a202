"""A comparison for people at a terminal: the answer in the first line, then what it rests on."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from ridgeline.records.comparison import Comparison, PairFolder, Skipped
from ridgeline.report.comparison_forest import draw
from ridgeline.report.comparison_headline import Headline, Tone, headline
from ridgeline.report.comparison_method import method
from ridgeline.report.comparison_next import command, next_step
from ridgeline.report.comparison_notes import Note, Weight, notes
from ridgeline.report.comparison_rows import WORDS, Grid, Row, arms, count, pairs

STYLES: dict[Tone, str] = {
    "good": "bold green",
    "bad": "bold red",
    "unsure": "bold yellow",
    "plain": "bold",
}
_WEIGHTS: dict[Weight, str] = {"bad": "bold red", "warning": "yellow", "note": "dim"}
COSTS = {"peak memory", "memory", "items", "first call", "first run", "pays after"}
_GAP = 2
_NARROWEST_NOTE = 32
"""Columns below which a pair's note goes under the table."""


def show(c: Comparison, console: Console, typed: Sequence[str] = ()) -> None:
    """`typed` is the command line after `ridgeline`, for the one to type next."""
    _answer(headline(c), console)
    _why(c, console)
    console.print()
    _tables(arms(c), console)
    _forest(c, console)
    console.print()
    _notes([*notes(c), *method(c)], console)
    _next(c, console, typed)


def show_folder(f: PairFolder, console: Console) -> None:
    found = pairs(f)
    if found.rows:
        _folder_table(found, console)
    measured = [p for p in f.pairs if not isinstance(p, Skipped)]
    shared = _shared([[n.text for n in notes(p.comparison) if n.label == "host"] for p in measured])
    console.print()
    _notes([Note("host", "note", text) for text in shared], console)
    _say(f"[bold]{escape(count(f))}[/bold]", console)


def _answer(found: Headline, console: Console) -> None:
    """One line where it fits, else one a part, as many parts on a line as it holds."""
    answer, about = found.answer, " · ".join(found.about)
    word = f"[{STYLES[answer.tone]}]{escape(answer.word)}[/]"
    if len(answer.text) + len(about) + 4 <= console.width:
        rest = answer.text.removeprefix(answer.word)
        console.print(f" {word}[bold]{escape(rest)}[/bold]   {escape(about)}", soft_wrap=True)
        return
    figure = f"{word} [bold]{escape(answer.figure)}[/bold]"
    if len(answer.text) < console.width:
        _say(f"{word}[bold]{escape(answer.text.removeprefix(answer.word))}[/bold]", console)
    else:
        _say(figure, console)
        _say(f"[bold]{escape(answer.speed)}[/bold]", console)
    for line in _flowed(found.about, console.width - 1):
        _say(escape(line), console)


def _flowed(parts: Sequence[str], width: int) -> list[str]:
    """Parts joined by dots, a new line before one that would not fit."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return lines


def _say(markup: str, console: Console) -> None:
    """A paragraph, wrapped inside the margin."""
    console.print(Padding(markup, (0, 0, 0, 1), expand=False), highlight=False)


def _why(c: Comparison, console: Console) -> None:
    """For a single candidate; with several, each has a note. That an interval lies above the
    threshold is all there is to say of FASTER, and is in the chart."""
    if len(c.candidates) == 1 and c.candidates[0].verdict not in ("FASTER", "SLOWER"):
        _say(escape(c.candidates[0].why), console)


def _tables(grid: Grid, console: Console) -> None:
    """The table, in two below each other where the terminal is too narrow for one."""
    parts = _parts(grid, console.width)
    for i, columns in enumerate(parts):
        part = grid.only(columns)
        # Below the first, a row that has nothing more to say is left out.
        rows = part.rows if i == 0 else tuple(r for r in part.rows if any(r.cells[1:]))
        console.print(_table(Grid(header=part.header, rows=rows), console.width))
        if i < len(parts) - 1:
            console.print()


def _parts(grid: Grid, width: int) -> list[tuple[str, ...]]:
    """The columns of each table, each beginning with the first column: all in one where they fit,
    else speed and costs apart, else as many as fit."""
    first, *others = grid.header
    start = 1 + _width(grid, first, width)
    parts: list[list[str]] = [[]]
    used, apart = start, start + sum(_width(grid, name, width) for name in others) > width
    for name in others:
        wide = _width(grid, name, width)
        turn = apart and len(parts) == 1 and name in COSTS
        if parts[-1] and (turn or used + wide > width):
            parts.append([])
            used = start
        parts[-1].append(name)
        used += wide
    return [(first, *part) for part in parts]


def _width(grid: Grid, name: str, width: int) -> int:
    wide = max(cell_len(text) for text in (name, *grid.column(name)))
    return (min(wide, width // 3) if name == grid.header[0] else wide) + _GAP


def _table(grid: Grid, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for i, name in enumerate(grid.header):
        table.add_column(
            f" {name}" if i == 0 else name,
            justify="left" if name in WORDS else "right",
            overflow="fold",
            max_width=width // 3 + 1 if i == 0 else None,
        )
    for row in grid.rows:
        table.add_row(*_cells(grid.header, row))
    return table


def _cells(header: Sequence[str], row: Row) -> list[str]:
    cells = [escape(text) for text in row.cells]
    cells[0] = f" {cells[0]}"
    if "verdict" in header:
        place = header.index("verdict")
        cells[place] = f"[{STYLES[row.tone]}]{cells[place]}[/]" if cells[place] else ""
    if row.quiet:
        return cells
    if "× baseline" in header and "verdict" not in header:
        place = header.index("× baseline")
        cells[place] = f"[{STYLES[row.tone]}]{cells[place]}[/]" if cells[place] else ""
    return cells


def _forest(c: Comparison, console: Console) -> None:
    lines = draw(c, console.width - 2)
    if lines:
        console.print()
    for line in lines:
        console.print(f" {line}", highlight=False, markup=False, soft_wrap=True)


def _notes(found: Sequence[Note], console: Console) -> None:
    last, rows = "", []
    for note in found:
        label = note.label if note.label != last else ""
        word = "[yellow]warning[/yellow]: " if note.weight == "warning" else ""
        rows.append((f"[{_WEIGHTS[note.weight]}]{label}[/]", f"{word}{escape(note.text)}"))
        last = note.label
    _labelled(rows, console)


def _labelled(rows: Sequence[tuple[str, str]], console: Console) -> None:
    """Paragraphs beside their labels; a long one goes on below itself."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=console.width // 3)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(f" {label}", text)
    if rows:
        console.print(table, highlight=False)


def _next(c: Comparison, console: Console, typed: Sequence[str]) -> None:
    step = next_step(c)
    if step is not None:
        typing = command(c, step, typed)
        if not typing:
            return
        line = f"\n {step.why}:  [bold]{escape(typing)}[/bold]"
        console.print(line, highlight=False, soft_wrap=True)


def _folder_table(grid: Grid, console: Console) -> None:
    columns = tuple(name for name in grid.header if name != "note")
    used = 1 + sum(_width(grid, name, console.width) for name in columns)
    if "note" not in grid.header or console.width - used >= _NARROWEST_NOTE:
        console.print(_table(grid, console.width))
        return
    _tables(grid.only(columns), console)
    console.print()
    told = zip(grid.rows, grid.column("note"), strict=True)
    _labelled(
        [(f"[{STYLES[r.tone]}]{escape(r.cells[0])}[/]", escape(note)) for r, note in told if note],
        console,
    )


def _shared(each: list[list[str]]) -> list[str]:
    """What was said of every pair is said once."""
    return [text for text in (each[0] if each else []) if all(text in other for other in each)]

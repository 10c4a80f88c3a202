"""A run for people at a terminal: one calm block, printed beside the program's own output.

First what limits it, then its figures, its phases to scale, what holds it back, and a line for each
thing worth one.
Every line keeps the same left edge, so that labels can be skipped and text be read down.
"""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from ridgeline import units
from ridgeline.records.run_summary import RunSummary
from ridgeline.report.finding_terminal import answer_rows, finding_rows
from ridgeline.report.plain import printable
from ridgeline.report.run_bar import bar
from ridgeline.report.run_figures import about, figures, sentence
from ridgeline.report.run_rows import Row, rows
from ridgeline.report.run_told import findings_told, next_of

EDGE = 12
"""Where text begins; labels stand before it."""
_TONES = {"plain": "", "quiet": "dim", "warning": "yellow"}
_ASCII = str.maketrans({
    "█": "#", "▏": "|", "·": "-", "…": "~", "×": "x", "µ": "u", "°": " ", "→": ">", "—": "-",
    "₂": "2", "≤": "<", "≥": ">", "±": "+",
})  # fmt: skip
"""One character for one, so that columns stay where they are."""


def render(summary: RunSummary, console: Console, *, answers: bool = False) -> None:
    """`answers`: with the five questions, for who wants to know more."""
    _headline(summary, console)
    drawn = bar(summary.step, console.width - 4)
    if drawn:
        _print(Text(), console)
        for line in drawn:
            _print(Text("   ") + line, console)
    _findings(summary, console)
    found = rows(summary)
    if found:
        _print(Text(), console)
    for row in found:
        _row(row, console)
    _python(summary, console)
    if answers:
        _block(answer_rows(summary.findings, console), console)
    _print(Text(), console)
    for number, command in enumerate(next_of(summary)):
        _labelled("" if number else "next", [Text(printable(command), "bold")], console)
    size = f"  ({units.bytes_(summary.bytes_on_disk)})" if summary.bytes_on_disk else ""
    _labelled("run", [Text(printable(summary.run_dir) + size, "dim")], console)
    _print(Text(), console)


def _headline(summary: RunSummary, console: Console) -> None:
    """The sentence, and beside it what ran where both fit, else below."""
    said = Text(sentence(summary), "bold")
    ran = Text(" · ".join(about(summary)), "dim")
    figured = [Text(f"{item} · ") for item in figures(summary)]
    room = console.width - EDGE - said.cell_len - ran.cell_len
    beside = room >= 3
    if beside:
        said.append(" " * (min(room, 12) if console.width > 140 else room - 1))
        said.append_text(ran)
    _print(Text(), console)
    _labelled("ridgeline", _wrapped(said, console), console, "bold cyan")
    if not beside:
        _labelled("", _wrapped(ran, console), console)
    if figured:
        figured[-1].right_crop(3)
        _labelled("", _flowed(figured, console), console)


def _findings(summary: RunSummary, console: Console) -> None:
    if findings_told(summary):
        _block(finding_rows(summary.findings, console), console)


def _block(lines: Iterable[Text], console: Console) -> None:
    for number, line in enumerate(lines):
        if not number:
            _print(Text(), console)
        _print(line, console)


def _row(row: Row, console: Console) -> None:
    tone = _TONES[row.tone]
    lines: list[Text] = []
    for text in (row.text, *row.further):
        pieces = [Text(f"{piece} · ", tone) for piece in text.split(" · ")]
        pieces[-1].right_crop(3)
        lines += _flowed(pieces, console)
    _labelled(row.label, lines, console)


def _python(summary: RunSummary, console: Console) -> None:
    if summary.python is None:
        return
    from ridgeline.report.run_python import lines_table

    _print(Text(), console)
    for block in lines_table(summary.python).__rich_console__(console, console.options):
        for line in block.split():
            _print(line, console)


def _flowed(pieces: Iterable[Text], console: Console) -> list[Text]:
    """Pieces side by side; one that does not fit begins a line, and is broken only if it must."""
    room = _room(console)
    lines: list[Text] = []
    for piece in pieces:
        bare = len(piece.plain.removesuffix("· ").rstrip())
        if lines and lines[-1].cell_len + bare <= room:
            lines[-1] += piece
        else:
            lines += _wrapped(piece, console)
    for line in lines:
        line.rstrip()
        if line.plain.endswith(" ·"):
            line.right_crop(2)
    return lines


def _wrapped(text: Text, console: Console) -> list[Text]:
    room = _room(console)
    if text.cell_len <= room:
        return [text]
    return list(text.wrap(console, room))


def _labelled(label: str, lines: Iterable[Text], console: Console, style: str = "dim") -> None:
    lead = Text(f" {label}", style)
    for line in lines:
        lead.pad_right(max(EDGE - lead.cell_len, 0))
        _print(Text() + lead + line, console)
        lead = Text()


def _room(console: Console) -> int:
    return max(console.width - EDGE, 20)


def _print(line: Text, console: Console) -> None:
    line.rstrip()
    if not console.encoding.lower().startswith("utf"):
        line.plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    console.print(line, soft_wrap=True, highlight=False)

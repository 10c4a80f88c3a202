"""A section's table on a terminal of any width: names are cut in the middle, spare columns go."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from ridgeline.report.model_growth import plain_table
from ridgeline.report.plain import ELLIPSIS, shorten
from ridgeline.report.trace_grid import Column

_FLEXIBLE = ("name", "place")
_GAP = 2
_INDENT = 3
NARROWEST_NAME = 14
WIDEST_NAME = 60


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int,
    full: bool = False,
    keep: bool = False,
) -> Table:
    """Spare columns only in the full view, and only where they fit; `keep`: all, whatever."""
    fit = [i for i, c in enumerate(columns) if (full or c.spare < 2) and _told(i, rows)]
    kept = list(range(len(columns))) if keep else fit
    while not keep and len(kept) > 2 and _least(kept, columns, rows) > width:
        kept = _fewer(kept, columns)
    widths = _widths(kept, columns, rows, width, width if keep or width >= 200 else WIDEST_NAME)
    made = plain_table()
    for place, i in enumerate(kept):
        lead = " " * _INDENT if place == 0 else ""
        made.add_column(
            f"{lead}{escape(columns[i].name)}",
            justify="right" if columns[i].sort == "number" and place else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        cells = [escape(_cut(columns[i], row[i], widths[i])) for i in kept]
        cells[0] = " " * _INDENT + cells[0]
        made.add_row(*cells)
    return made


def _cut(column: Column, text: str, width: int) -> str:
    """Of a place the line number stays: its function goes first, then the folders."""
    if column.sort != "place" or len(text) <= width:
        return shorten(text, width)
    line = text.split(" ")[0]
    return line if len(line) <= width else f"{ELLIPSIS}{line[len(line) - width + 1 :]}"


def _told(i: int, rows: Sequence[Sequence[str]]) -> bool:
    """A column nobody filled is left out."""
    return any(row[i] not in ("", "—") for row in rows)


def _fewer(kept: list[int], columns: Sequence[Column]) -> list[int]:
    """The most spare goes first, of equals the last."""
    goes = max(reversed(kept[1:]), key=lambda i: columns[i].spare)
    return [i for i in kept if i != goes]


def _natural(i: int, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    return max(cell_len(text) for text in (columns[i].name, *(row[i] for row in rows)))


def _least(kept: Sequence[int], columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    wide = [_natural(i, columns, rows) for i in kept]
    least = [
        min(w, NARROWEST_NAME) if columns[i].sort in _FLEXIBLE else w
        for i, w in zip(kept, wide, strict=True)
    ]
    return _INDENT + sum(least) + _GAP * len(kept)


def _widths(
    kept: Sequence[int],
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int,
    widest: int,
) -> dict[int, int]:
    """What is left after the figures is shared by the names, those that need little first."""
    natural = {i: _natural(i, columns, rows) for i in kept}
    names = sorted((i for i in kept if columns[i].sort in _FLEXIBLE), key=lambda i: natural[i])
    room = width - _INDENT - _GAP * len(kept)
    room -= sum(natural[i] for i in kept if columns[i].sort not in _FLEXIBLE)
    for place, i in enumerate(names):
        fair = max(room // (len(names) - place), min(NARROWEST_NAME, natural[i]))
        natural[i] = min(natural[i], fair, widest)
        room -= natural[i]
    return natural

"""A section's table on a terminal of any width: names are cut in the middle, spare columns go."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from ridgeline.report.model_growth import plain_table
from ridgeline.report.plain import shorten
from ridgeline.report.trace_grid import Column

_GAP = 2
_INDENT = 3
NARROWEST_NAME = 14
WIDEST_NAME = 60


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, full: bool = False
) -> Table:
    """Spare columns only in the full view, and only where they fit."""
    kept = [i for i, c in enumerate(columns) if (full or c.spare < 2) and _told(i, rows)]
    while len(kept) > 2 and _least(kept, columns, rows) > width:
        kept = _fewer(kept, columns)
    widths = _widths(kept, columns, rows, width)
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
        cells = [escape(shorten(row[i], widths[i])) for i in kept]
        cells[0] = " " * _INDENT + cells[0]
        made.add_row(*cells)
    return made


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
        min(w, NARROWEST_NAME) if columns[i].sort == "name" else w
        for i, w in zip(kept, wide, strict=True)
    ]
    return _INDENT + sum(least) + _GAP * len(kept)


def _widths(
    kept: Sequence[int], columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> dict[int, int]:
    """What is left after the figures is shared by the names, those that need little first."""
    natural = {i: _natural(i, columns, rows) for i in kept}
    names = sorted((i for i in kept if columns[i].sort == "name"), key=lambda i: natural[i])
    room = width - _INDENT - _GAP * len(kept)
    room -= sum(natural[i] for i in kept if columns[i].sort != "name")
    for place, i in enumerate(names):
        fair = max(room // (len(names) - place), min(NARROWEST_NAME, natural[i]))
        natural[i] = min(natural[i], fair, WIDEST_NAME if width < 200 else fair)
        room -= natural[i]
    return natural

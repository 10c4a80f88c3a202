"""A section's table on a terminal of any width: names are cut in the middle, spare columns go."""

from collections.abc import Sequence

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ridgeline.report.plain import ELLIPSIS, shorten
from ridgeline.report.trace_grid import Column

_FLEXIBLE = ("name", "place")
_GAP = 2
_INDENT = 3
NARROWEST_NAME = 14
WIDEST_NAME = 60


class Laid(Struct, frozen=True):
    """A table as lines, the header first, and the columns there was no room for."""

    lines: tuple[str, ...]
    gone: tuple[str, ...] = ()


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int,
    full: bool = False,
    keep: bool = False,
) -> Laid:
    """Spare columns only in the full view, and only where they fit; `keep`: the last go first."""
    fit = [i for i, c in enumerate(columns) if (full or c.spare < 2) and _told(i, rows)]
    kept = list(range(len(columns))) if keep else fit
    natural = [_natural(i, columns, rows) for i in range(len(columns))]
    while len(kept) > (1 if keep else 2) and _least(kept, columns, natural) > width:
        kept = kept[:-1] if keep else _fewer(kept, columns)
    widest = width if keep or width >= 200 else WIDEST_NAME
    widths = _widths(kept, columns, natural, width, widest)
    cells = [[_cut(columns[i], row[i], widths[i]) for i in kept] for row in rows]
    titles = [columns[i].name for i in kept]
    right = [columns[i].sort == "number" and place > 0 for place, i in enumerate(kept)]
    final = [max(map(cell_len, column)) for column in zip(titles, *cells, strict=True)]
    lines = tuple(_line(row, final, right) for row in (titles, *cells))
    return Laid(lines, tuple(c.name for i, c in enumerate(columns) if keep and i not in kept))


def print_table(laid: Laid, console: Console) -> None:
    """As it is: nothing in it is markup, no line is wrapped."""
    console.print(Text(laid.lines[0], style="dim"), soft_wrap=True)
    if len(laid.lines) > 1:
        console.print(Text("\n".join(laid.lines[1:])), soft_wrap=True)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """Padded by what a terminal shows: a Chinese character takes two places."""
    made = []
    for text, width, is_right in zip(cells, widths, right, strict=True):
        blank = " " * (width - cell_len(text))
        made.append(f"{blank}{text}" if is_right else f"{text}{blank}")
    return (" " * _INDENT + (" " * _GAP).join(made)).rstrip()


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


def _floor(i: int, columns: Sequence[Column], natural: Sequence[int]) -> int:
    """A name can be cut, its column's title cannot."""
    if columns[i].sort not in _FLEXIBLE:
        return natural[i]
    return max(min(natural[i], NARROWEST_NAME), cell_len(columns[i].name))


def _least(kept: Sequence[int], columns: Sequence[Column], natural: Sequence[int]) -> int:
    return _INDENT + sum(_floor(i, columns, natural) for i in kept) + _GAP * (len(kept) - 1)


def _widths(
    kept: Sequence[int],
    columns: Sequence[Column],
    natural: Sequence[int],
    width: int,
    widest: int,
) -> dict[int, int]:
    """What is left after the figures is shared by the names, those that need little first."""
    widths = {i: natural[i] for i in kept}
    names = sorted((i for i in kept if columns[i].sort in _FLEXIBLE), key=lambda i: natural[i])
    room = width - _INDENT - _GAP * (len(kept) - 1)
    room -= sum(natural[i] for i in kept if columns[i].sort not in _FLEXIBLE)
    for place, i in enumerate(names):
        fair = max(room // (len(names) - place), _floor(i, columns, natural))
        widths[i] = min(natural[i], fair, widest)
        room -= widths[i]
    return widths

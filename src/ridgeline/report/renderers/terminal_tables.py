"""Tables at a terminal of any width.

A table with spare columns is a ranking: where there is little room, names are cut in the middle and
spare columns are left out. Any other table loses nothing: names are folded, and columns that do not
fit continue in a second table below. Text in cells and paragraphs is broken between words, and code
where it stays the same.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from ridgeline.report.document import Cell, Column, Row, Table, Tone, Words
from ridgeline.report.plain import ELLIPSIS, printable, shorten
from ridgeline.units import plural

GAP = 2
MIN_NAME_COLUMNS = 14
MAX_NAME_COLUMNS = 60
MIN_WIDE_COLUMNS = 200
"""On a terminal as wide as this, names are not cut to `MAX_NAME_COLUMNS`."""
FAIR_NAME_COLUMNS = 24
"""Names of a row are folded to this width before other columns continue in a table below."""
MIN_NOTE_COLUMNS = 32
"""With less room beside a row, its note stands below it."""
_FLEXIBLE = ("name", "names", "place")
_BETWEEN = " · "
_UNKNOWN = ("", "—")

MIN_TEXT_COLUMNS = 10
STYLES: dict[Tone, str] = {
    "plain": "", "quiet": "dim", "good": "green", "bad": "red", "unsure": "yellow",
}  # fmt: skip
_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|[kMGT]?FLOP(?:/s)?|[kMGT]?B/s|[KMGT]?i?B|[mµn]?s)(?![\w:]))")
_GLUE = "\ue000"
"""Stands for the space between a figure and its unit while lines are broken. `printable` lets no
such character through."""
INDENT = 4
MIN_CODE_COLUMNS = 20
"""With less room than this, no line of code is broken sensibly."""
_OPENS, _CLOSES, _QUOTES = "([{", ")]}", "\"'"
_COMMA, _BLANK, _BRACKET = range(3)
"""Kinds of places where a line can be broken, the best first."""
_BACKSLASH = " \\"
"""Continues a line where no bracket is open."""


def table_lines(
    table: Table, rows: Sequence[Row], indent: int, full: bool, console: Console
) -> list[Text]:
    """Return the lines of a table, its header first."""
    width = console.width - indent
    is_ranking = any(column.spare for column in table.columns)
    texts = [[printable(cell.text) for cell in row.cells] for row in rows]
    kept = [
        i
        for i, column in enumerate(table.columns)
        if i == 0 or any(row[i] not in _UNKNOWN for row in texts) or not is_ranking
        if (full or column.spare < 2)
    ]
    if is_ranking:
        parts = [_that_fit(kept, table.columns, texts, width)]
    else:
        parts = _split([i for i in kept if not i or any(row[i] for row in texts)] or kept,
                       table.columns, texts, width)  # fmt: skip
    lines: list[Text] = []
    for number, part in enumerate(parts):
        if number:
            lines.append(Text())
        layout = _Layout(part, table.columns, texts, width, is_ranking)
        lines.append(layout.header())
        for row, cells in zip(rows, texts, strict=True):
            # Below the first table, a row that has nothing more to say is left out.
            if number and not any(cells[i] for i in part[1:]):
                continue
            if row.gap:
                lines.append(Text())
            lines += layout.row(row, cells, "" if number else printable(row.note), console)
    lost = [c.name for i, c in enumerate(table.columns) if c.spare < 1 and _is_lost(i, kept, parts)]
    if lost and is_ranking:
        note = f"no room for {plural(len(lost), 'column')}: {', '.join(lost)}"
        lines.append(Text(shorten(printable(note), width), "dim"))
    return [Text(" " * indent) + line if line.plain else line for line in lines]


def _is_lost(index: int, kept: Sequence[int], parts: Sequence[Sequence[int]]) -> bool:
    return index in kept and not any(index in part for part in parts)


class _Layout:
    """The widths of some columns of a table."""

    def __init__(
        self,
        kept: Sequence[int],
        columns: Sequence[Column],
        texts: Sequence[Sequence[str]],
        width: int,
        is_ranking: bool,
    ) -> None:
        self.kept, self.columns, self.width, self.is_ranking = kept, columns, width, is_ranking
        natural = _natural(columns, texts)
        if is_ranking:
            self.widths = _shared_widths(kept, columns, natural, width)
            # A place that lost its function is shorter than the room it was given.
            shown = [[self._text(i, row[i]) for row in texts] for i in kept]
            for i, column in zip(kept, shown, strict=True):
                self.widths[i] = widest((columns[i].name, *column))
        else:
            first = _first_width(kept, columns, natural, width)
            most = max(width - first - GAP, MIN_NAME_COLUMNS)
            self.widths = {i: min(natural[i], most) for i in kept}
            self.widths[kept[0]] = first

    def header(self) -> Text:
        return self._line([Text(self.columns[i].name, "dim") for i in self.kept])

    def row(self, row: Row, texts: Sequence[str], note: str, console: Console) -> list[Text]:
        cells = []
        for i in self.kept:
            cells.append(Text(self._text(i, texts[i]), _style(row, row.cells[i])))
        folded = [
            [cell] if cell.cell_len <= self.widths[i] else list(cell.wrap(console, self.widths[i]))
            for i, cell in zip(self.kept, cells, strict=True)
        ]
        lines = [
            self._line([part[n] if n < len(part) else Text() for part in folded])
            for n in range(max(map(len, folded)))
        ]
        return _with_note(lines, row, note, self.width, self._used(), console) if note else lines

    def _text(self, i: int, text: str) -> str:
        if self.is_ranking and self.columns[i].kind in _FLEXIBLE:
            return _shortened(self.columns[i], text, self.widths[i])
        return text

    def _used(self) -> int:
        return sum(self.widths[i] for i in self.kept) + GAP * len(self.kept)

    def _line(self, cells: Sequence[Text]) -> Text:
        """Pad cells by what a terminal shows: a Chinese character takes two places."""
        parts: list[tuple[str, Any]] = []
        for place, (i, cell) in enumerate(zip(self.kept, cells, strict=True)):
            text = cell.plain.rstrip()
            blank = " " * max(self.widths[i] - cell_len(text), 0)
            is_right = place > 0 and self.columns[i].kind == "number"
            parts += [(blank, ""), (text, cell.style)] if is_right else [(text, cell.style)]
            parts.append((" " * GAP if is_right else blank + " " * GAP, ""))
        if any(style for _, style in parts):
            line = Text.assemble(*parts)
        else:  # spans for each cell would make long tables slow
            line = Text("".join(text for text, _ in parts))
        line.rstrip()
        return line


def _with_note(
    lines: list[Text], row: Row, note: str, width: int, used: int, console: Console
) -> list[Text]:
    text = Text(note, STYLES[row.tone])
    room = width - used
    beside = text.cell_len <= room or room >= MIN_NOTE_COLUMNS
    parts = wrapped(text, room if beside else width - 4, console)
    if not beside:
        return [*lines, *(Text("  ") + part for part in parts)]
    for number, part in enumerate(parts):
        if number == len(lines):
            lines.append(Text())
        lead = lines[number].copy()
        lead.pad_right(used - lead.cell_len)
        lines[number] = Text.assemble(lead, part)
    return lines


def _style(row: Row, cell: Cell) -> str:
    tone = cell.tone if cell.tone != "plain" else "quiet" if row.tone == "quiet" else "plain"
    bold = "bold" if cell.bold or row.bold else ""
    return " ".join(x for x in (bold, STYLES[tone]) if x)


def _natural(columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> list[int]:
    return [widest((c.name, *(row[i] for row in texts))) for i, c in enumerate(columns)]


def _first_width(
    kept: Sequence[int], columns: Sequence[Column], natural: Sequence[int], width: int
) -> int:
    """Return the width of the first column: its natural one or a third of the room, but less where
    all other columns fit beside a fair width."""
    first, *others = kept
    if columns[first].kind not in _FLEXIBLE:
        return natural[first]
    usual = min(natural[first], max(width // 3, MIN_NAME_COLUMNS))
    left = width - sum(GAP + natural[i] for i in others)
    return min(usual, left) if left >= FAIR_NAME_COLUMNS else usual


def _split(
    kept: Sequence[int], columns: Sequence[Column], texts: Sequence[Sequence[str]], width: int
) -> list[list[int]]:
    """Return the columns of each table; every table begins with the first column."""
    natural = _natural(columns, texts)
    first, *others = kept
    start = _first_width(kept, columns, natural, width)
    parts: list[list[int]] = [[first]]
    used = start
    is_split = start + sum(GAP + natural[i] for i in others) > width
    for i in others:
        turns = is_split and columns[i].starts_part and len(parts) == 1
        if len(parts[-1]) > 1 and (turns or used + GAP + natural[i] > width):
            parts.append([first])
            used = start
        parts[-1].append(i)
        used += GAP + natural[i]
    return parts


def _shortened(column: Column, text: str, width: int) -> str:
    """Cut a name in the middle; of several names show as many as fit. A place keeps its line
    number: its function goes first, then its folders."""
    if column.kind == "names":
        return _first_names(text, width)
    if column.kind != "place" or len(text) <= width:
        return shorten(text, width)
    line = text.split(" ")[0]
    return line if len(line) <= width else f"{ELLIPSIS}{line[len(line) - width + 1 :]}"


def _first_names(text: str, width: int) -> str:
    names = text.split(_BETWEEN)
    for shown in range(len(names), 0, -1):
        more = f" and {len(names) - shown} more" if shown < len(names) else ""
        line = f"{_BETWEEN.join(names[:shown])}{more}"
        if cell_len(line) <= width:
            return line
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    room = max(width - len(more), 1)
    first = names[0] if cell_len(names[0]) <= room else set_cell_size(names[0], room - 1) + ELLIPSIS
    return first + more


def _that_fit(
    kept: list[int], columns: Sequence[Column], texts: Sequence[Sequence[str]], width: int
) -> list[int]:
    """Leave out columns until the rest fits: the most spare first, of equals the last."""
    natural = _natural(columns, texts)
    while len(kept) > 2 and _least(kept, columns, natural) > width:
        goes = max(reversed(kept[1:]), key=lambda i: columns[i].spare)
        kept = [i for i in kept if i != goes]
    return kept


def _floor(i: int, columns: Sequence[Column], natural: Sequence[int]) -> int:
    """A name can be cut, the title of its column cannot."""
    if columns[i].kind not in _FLEXIBLE:
        return natural[i]
    return max(min(natural[i], MIN_NAME_COLUMNS), cell_len(columns[i].name))


def _least(kept: Sequence[int], columns: Sequence[Column], natural: Sequence[int]) -> int:
    return sum(_floor(i, columns, natural) for i in kept) + GAP * (len(kept) - 1)


def _shared_widths(
    kept: Sequence[int], columns: Sequence[Column], natural: Sequence[int], width: int
) -> dict[int, int]:
    """Divide the room that the figures leave among the names, those that need little first."""
    most = width if width >= MIN_WIDE_COLUMNS else MAX_NAME_COLUMNS
    widths = {i: natural[i] for i in kept}
    names = sorted((i for i in kept if columns[i].kind in _FLEXIBLE), key=lambda i: natural[i])
    room = width - GAP * (len(kept) - 1)
    room -= sum(natural[i] for i in kept if columns[i].kind not in _FLEXIBLE)
    for place, i in enumerate(names):
        fair = max(room // (len(names) - place), _floor(i, columns, natural))
        # Several names, and a name that is the point of its table, get all the room there is.
        has_all = columns[i].kind == "names" or columns[i].spare < 0
        widths[i] = min(natural[i], fair, width if has_all else most)
        room -= widths[i]
    return widths


def styled(words: Words, style: str = "") -> Text:
    """Return the words as text for a terminal; nothing in them is markup."""
    if isinstance(words, str):
        return Text(printable(words), style)
    text = Text(style=style)
    for span in words:
        shown = printable(span.text)
        look = " ".join(x for x in ("bold" if span.bold else "", STYLES[span.tone]) if x)
        text.append(f"`{shown}`" if span.code else shown, look or None)
    return text


def wrapped(text: Text, width: int, console: Console) -> list[Text]:
    """Return at least one line. No line ends in a blank, and no figure is parted from its unit."""
    glued = text.copy()
    glued.plain = _UNIT.sub(_GLUE, text.plain)  # one character for one: styles stay where they are
    lines = list(glued.wrap(console, max(width, MIN_TEXT_COLUMNS))) or [glued]
    for line in lines:
        line.plain = line.plain.replace(_GLUE, " ")
        line.rstrip()
    return lines


def flowed(text: Text, width: int, console: Console) -> list[Text]:
    """Break a text between its parts, which dots separate. A part is broken only where it alone is
    too long for a line."""
    if text.cell_len <= width:
        return wrapped(text, width, console)
    lines: list[Text] = []
    start = 0
    for part in text.plain.split(_BETWEEN):
        piece = text[start : start + len(part)]
        start += len(part) + len(_BETWEEN)
        if lines and lines[-1].cell_len + len(_BETWEEN) + piece.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], _BETWEEN, piece)
        else:
            lines += wrapped(piece, width, console)
    return lines


def widest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def fitted(lines: tuple[str, ...], width: int) -> tuple[str, ...]:
    """Return the same Python code in lines of at most `width`; no part of it is left out.

    A long comment goes below its line; a call is broken after a comma, then anything inside
    brackets, then at a blank with a backslash. All of that is the same code. A long text in quotes
    is broken where the room ends.
    """
    room = max(width, MIN_CODE_COLUMNS)
    return tuple(piece for line in lines for piece in _fitted(line, room))


def _fitted(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    code, comment = _parted(line)
    lead = line[: len(line) - len(line.lstrip())][: width - MIN_CODE_COLUMNS // 2]
    comments = _comment(comment, lead, width) if comment else []
    return (_broken(code, width) if code.strip() else []) + comments


def _comment(comment: str, lead: str, width: int) -> list[str]:
    """Return the words of a comment in lines, each a comment of its own."""
    lines: list[str] = []
    line = lead + "#"
    for word in comment.lstrip("#").split():
        if len(line) + 1 + len(word) > width and line.strip() != "#":
            lines.append(line)
            line = lead + "#"
        line += f" {word}"
        while len(line) > width:  # one word that is longer than the room
            lines.append(line[:width])
            line = f"{lead}# {line[width:]}"
    return [*lines, line]


def _broken(line: str, width: int) -> list[str]:
    lead = " " * min(len(line) - len(line.lstrip()) + INDENT, width - MIN_CODE_COLUMNS // 2)
    lines: list[str] = []
    depth = 0
    while len(line) > width:
        cut, mark = _cut(line, depth, len(lead), width)
        lines.append(line[:cut].rstrip() + mark)
        depth = _depth(line[:cut], depth)
        line = lead + line[cut:].lstrip()
    return [*lines, line]


def _cut(line: str, depth: int, lead: int, width: int) -> tuple[int, str]:
    """Return where to break a line and what to write there: in the outermost brackets, at the last
    place that fits."""
    places = [
        (deep or len(line), kind, -index)
        for kind, deep, index in _places(line, depth)
        if lead + 1 < index <= width - (0 if deep else len(_BACKSLASH))
    ]
    if not places:
        return width - 1, _BACKSLASH.strip()
    outermost, _, index = min(places)
    return -index, "" if outermost < len(line) else _BACKSLASH


def _places(line: str, depth: int) -> list[tuple[int, int, int]]:
    """Return (kind, depth, end) of the places where a line can be broken and stays the same code:
    inside brackets anywhere between words, outside of them at a blank. `depth` brackets are open
    from the lines before."""
    places: list[tuple[int, int, int]] = []
    for index, character, deep in _outside_texts(line, depth):
        if character == "," and deep:
            places.append((_COMMA, deep, index + 1))
        elif character in _OPENS and line[index + 1 : index + 2] not in _CLOSES:
            places.append((_BRACKET, deep, index + 1))
        elif character == " " and line[:index].strip():
            places.append((_BLANK, deep, index))
    return places


def _parted(line: str) -> tuple[str, str]:
    """Return the code and its comment."""
    for index, character, _ in _outside_texts(line, 0):
        if character == "#":
            return line[:index].rstrip(), line[index:]
    return line, ""


def _depth(line: str, depth: int) -> int:
    seen = _outside_texts(line, depth)
    return seen[-1][2] if seen else depth


def _outside_texts(line: str, depth: int) -> list[tuple[int, str, int]]:
    """Return (index, character, depth of brackets behind it) of characters outside quotes."""
    characters: list[tuple[int, str, int]] = []
    quote, skip = "", False
    for index, character in enumerate(line):
        if skip:
            skip = False
        elif quote:
            skip = character == "\\"
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        else:
            depth += (character in _OPENS) - (character in _CLOSES)
            depth = max(depth, 0)
            characters.append((index, character, depth))
    return characters

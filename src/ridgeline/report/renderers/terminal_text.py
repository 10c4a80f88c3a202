"""Lines at a terminal: paragraphs broken between words, and code broken where it stays the same."""

import re
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ridgeline.report.document import Tone, Words
from ridgeline.report.plain import printable

MIN_TEXT_COLUMNS = 10
STYLES: dict[Tone, str] = {
    "plain": "", "quiet": "dim", "good": "green", "bad": "red", "unsure": "yellow",
}  # fmt: skip
_BETWEEN = " · "
_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|[kMGT]?FLOP(?:/s)?|[kMGT]?B/s|[KMGT]?i?B|[mµn]?s)(?![\w:]))")
_GLUE = "\ue000"
"""Stands for the space between a figure and its unit while lines are broken. `printable` lets no
such character through."""


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


INDENT = 4
MIN_CODE_COLUMNS = 20
"""With less room than this, no line of code is broken sensibly."""
_OPENS, _CLOSES, _QUOTES = "([{", ")]}", "\"'"
_COMMA, _BLANK, _BRACKET = range(3)
"""Kinds of places where a line can be broken, the best first."""
_BACKSLASH = " \\"
"""Continues a line where no bracket is open."""


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

"""Text from outside made safe to print: nothing in it moves a cursor, hides or reorders text.

The names in a trace come from whoever wrote it. A terminal obeys control characters (colours,
titles, links, the clipboard), and bidirectional overrides make a line read as another one.
"""

import re
import unicodedata

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's classes of characters without a glyph: control, format, private, separators."""
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")

ELLIPSIS = "…"


def printable(text: str) -> str:
    """Return the text with every unseen character spelled out: \\x1b, \\u202e, \\r."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def shorten(text: str, width: int) -> str:
    """Return at most `width` characters, cut in the middle: both ends of a kernel's name tell what
    it is."""
    if len(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}{ELLIPSIS}{text[len(text) - tail :]}"


def json_text(text: str) -> str:
    """Return a JSON document with unseen characters as \\u escapes: the same document, safe at a
    terminal."""
    return text if text.isascii() and "\x7f" not in text else _NOT_ASCII.sub(_escaped, text)


def _escaped(match: "re.Match[str]") -> str:
    character = match.group()
    if unicodedata.category(character) not in _UNSEEN:
        return character
    halves = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{halves[i]:02x}{halves[i + 1]:02x}" for i in range(0, len(halves), 2))


def _spelled(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    if ord(character) > 127:
        return character.encode("ascii", "backslashreplace").decode()
    return repr(character)[1:-1]

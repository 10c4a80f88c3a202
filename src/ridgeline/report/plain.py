"""Words from a file, made safe to print: nothing in them moves a cursor, hides or reorders text.

Names in a trace come from whoever wrote it. A terminal obeys control characters (colours, titles,
links, the clipboard), and bidirectional overrides make a line read as another one.
"""

import unicodedata

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's classes of characters without a glyph of their own, surrogates and separators."""

ELLIPSIS = "…"


def printable(text: str) -> str:
    """`text` with every unseen character spelled out: \\x1b, \\u202e, \\r."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def shorten(text: str, width: int) -> str:
    """At most `width` characters, cut in the middle: a kernel's both ends tell what it is."""
    if len(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}{ELLIPSIS}{text[len(text) - tail :]}"


def _spelled(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    return character.encode("ascii", "backslashreplace").decode() if ord(character) > 127 else (
        repr(character)[1:-1]
    )

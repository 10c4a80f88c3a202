"""A user's words inside a table: they stay words, whatever is in them."""

import re

_SPECIAL = re.compile(r"([\\`*|~]|\](?=[(\[:]))")
"""A bracket only where a link would follow it: [1.27, 1.35] stays readable in the source."""
_EDGE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""An underscore between letters is plain in GitHub's Markdown; at an edge (__init__) it is not."""


def markdown_cell(text: str) -> str:
    """As written, in a table or a paragraph: no cell, tag, link or emphasis of its own."""
    plain = _EDGE.sub(r"\\_", _SPECIAL.sub(r"\\\1", " ".join(text.split())))
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def spreadsheet_cell(cell: object) -> object:
    """What a spreadsheet would run as a formula is quoted as text."""
    risky = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if risky else cell

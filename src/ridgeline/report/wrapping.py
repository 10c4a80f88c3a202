"""Paragraphs broken into lines, without parting a figure from its unit."""

import re

from rich.console import Console
from rich.text import Text

_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|[kMGT]?FLOP(?:/s)?|[kMGT]?B/s|[KMGT]?i?B|[mµn]?s)(?![\w:]))")
_GLUE = "\ue000"
"""Stands for a space while lines are broken; `printable` lets none of it through."""
NARROWEST = 10


def wrapped(text: Text, width: int, console: Console) -> list[Text]:
    """At least one line; none ends in a blank."""
    glued = text.copy()
    glued.plain = _UNIT.sub(_GLUE, text.plain)  # one character for one: styles stay where they are
    lines = list(glued.wrap(console, max(width, NARROWEST))) or [glued]
    for line in lines:
        line.plain = line.plain.replace(_GLUE, " ")
        line.rstrip()
    return lines

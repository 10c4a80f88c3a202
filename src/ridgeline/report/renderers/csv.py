"""Raw figures for spreadsheets and programs."""

import csv
import io
from typing import Any

from ridgeline.report.document import Figures
from ridgeline.report.plain import printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LAYOUT = {"\n", "\t"}
"""Characters that a cell may hold as they are. A carriage return alone is not quoted by the csv
module, and ends a line for many readers."""


def render(figures: Figures) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in figures.columns])
    writer.writerows([_cell(value) for value in row] for row in figures.rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a cell. A text that a spreadsheet would run as a formula is quoted."""
    if isinstance(value, list | tuple):
        value = " + ".join(map(str, value))
    if not isinstance(value, str):
        return "" if value is None else value
    safe = "".join(c if c in _LAYOUT else printable(c) for c in value)
    return f"'{safe}" if safe.startswith(_FORMULA) else safe

"""The ladder for spreadsheets: a row a rung, the columns those of the JSON document's ladder."""

import csv as csv_module
import io
from typing import Any

from ridgeline.records.optimized import Optimized
from ridgeline.report.cells import spreadsheet_cell
from ridgeline.report.optimized_document import COLUMNS, ladder
from ridgeline.report.plain import printable


def csv(found: Optimized) -> str:
    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(row[name]) for name in COLUMNS] for row in ladder(found))
    return text.getvalue()


def _cell(value: Any) -> object:
    """Several changes in one cell; a user's words on one line and never a formula."""
    if isinstance(value, list):
        value = " + ".join(value)
    return spreadsheet_cell(printable(value)) if isinstance(value, str) else value

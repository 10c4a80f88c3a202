"""Model reports as tables: Markdown for people, CSV for programs; a column a model."""

import csv as csv_module
import io
from collections.abc import Iterator
from typing import Any

from ridgeline.records.model import ModelReport
from ridgeline.report.model_rows import side_by_side


def _grid(reports: list[ModelReport]) -> tuple[list[str], list[list[str]]]:
    lines = side_by_side(reports)
    return ["", *(r.model for r in reports)], [[label, *values] for _, label, values in lines]


def markdown(reports: list[ModelReport]) -> str:
    header, body = _grid(reports)
    lines = [_line(header), _line(["---"] + ["---:"] * len(reports)), *(_line(r) for r in body)]
    notes = [
        f"- {_escaped(f'{r.model}: {note}')}"
        for r in reports
        for note in dict.fromkeys((*r.cost.notes, *r.notes))
    ]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(_escaped(c) for c in cells) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def csv(documents: list[dict[str, Any]]) -> str:
    """For programs: one line a figure by its path in the JSON document, raw, a column a model."""
    columns = [dict(_figures(d)) for d in documents]
    paths = dict.fromkeys(path for column in columns for path in column)
    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    writer.writerow(["figure", *(_plain(str(d["model"])) for d in documents)])
    for path in paths:
        writer.writerow([path, *(_plain(c.get(path, "")) for c in columns)])
    return text.getvalue()


def _figures(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar below a document, named like macs.forward; lists are left to JSON."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key != "conventions":
                yield from _figures(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, str | int | float):
        yield path, value


def _plain(cell: Any) -> Any:
    """A cell that a spreadsheet would run as a formula is quoted as text."""
    text = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@"))
    return f"'{cell}" if text else cell

"""Comparisons for spreadsheets and programs: a row a sample, or of a folder a row a pair."""

import csv as csv_module
import io
from collections.abc import Iterable
from typing import Any

from ridgeline.records.comparison import Comparison, PairFolder
from ridgeline.report.cells import spreadsheet_cell
from ridgeline.report.comparison_document import document, folder_document

FOLDER_COLUMNS = (
    *("pair", "title", "status", "candidate", "goal", "goal_met", "verdict", "ratio", "ci_low"),
    *("ci_high", "results", "strength", "baseline_median_ms", "median_ms", "baseline_peak_bytes"),
    *("peak_bytes", "first_call_ms", "pays_after", "pays", "reason"),
)


def csv(c: Comparison) -> str:
    """Round by round; a round's arms in the order of the table, not the order they ran in."""
    arms = document(c)["samples"]
    longest = max((arm["count"] for arm in arms.values()), default=0)
    return _written(
        ("round", "arm", "ns"),
        (
            (i + 1, name, arm["values"][i])
            for i in range(longest)
            for name, arm in arms.items()
            if i < arm["count"]
        ),
    )


def folder_csv(f: PairFolder) -> str:
    rows = [row for pair in folder_document(f)["pairs"] for row in _rows(pair)]
    return _written(FOLDER_COLUMNS, ([row.get(name) for name in FOLDER_COLUMNS] for row in rows))


def _rows(pair: dict[str, Any]) -> list[dict[str, Any]]:
    whole = pair["comparison"]
    shared = {"pair": pair["name"], **{k: pair[k] for k in ("title", "status", "goal", "reason")}}
    if whole is None:
        return [shared]
    base = whole["baseline"]
    return [
        {
            **k,
            **shared,
            "candidate": k["name"],
            "results": k["results"]["status"],
            "strength": k["results"]["strength"],
            "baseline_median_ms": base["median_ms"],
            "baseline_peak_bytes": base["peak_bytes"],
            "reason": k["why"],
        }
        for k in whole["candidates"]
    ]


def _written(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([spreadsheet_cell(cell) for cell in row] for row in rows)
    return text.getvalue()

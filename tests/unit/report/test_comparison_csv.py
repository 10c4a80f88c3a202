"""Samples and pairs for spreadsheets."""

import csv as csv_module
import io

import pytest

from ridgeline.records.comparison import Comparison
from ridgeline.report.renderers import csv as renderer
from ridgeline.report.views import comparison as view
from ridgeline.report.views import pair_folder
from tests.unit.report.made_up_comparison import candidate, comparison, folder, variant, with_names


def csv(c: Comparison) -> str:
    return renderer.render(view.figures(c))


def rows(text: str) -> list[list[str]]:
    return list(csv_module.reader(io.StringIO(text)))


def test_each_sample_has_a_row_in_order_of_rounds() -> None:
    table = rows(csv(comparison()))
    assert table[0] == ["round", "variant", "ns"]
    assert table[1] == ["1", "baseline", "12300000.0"]
    assert table[2] == ["1", "fast.py:step", "9400000.0"]
    assert len(table) == 1 + 2 * 60


def test_a_variant_with_fewer_samples_has_fewer_rows() -> None:
    short = comparison(
        candidate(of_variant={"samples_ns": (1.0,)}), baseline=variant("s", samples_ns=())
    )
    assert rows(csv(short)) == [["round", "variant", "ns"], ["1", "fast.py:step", "1.0"]]


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "@x", "+1", "-1"])
def test_no_name_is_run_as_a_spreadsheet_formula(name: str) -> None:
    assert {row[1] for row in rows(csv(with_names(name)))} == {"variant", "baseline", f"'{name}"}


def test_each_pair_has_a_row_with_the_reason_if_it_was_not_measured() -> None:
    header, *table = rows(renderer.render(pair_folder.figures(folder())))
    found = {row[0]: dict(zip(header, row, strict=True)) for row in table}
    assert len(found) == 7
    assert found["attention"]["verdict"] == "FASTER"
    assert found["attention"]["ratio"] == "1.31"
    assert found["checkpointing"]["peak_bytes"] == str(370 * 2**20)
    assert found["checkpointing"]["goal_met"] == "True"
    assert found["precision"]["status"] == "SKIP"
    assert found["precision"]["ratio"] == ""
    assert found["dataloader"]["reason"] == "workload() raised ValueError: no such folder"

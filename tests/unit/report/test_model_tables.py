"""Markdown for people and CSV for programs: a row a figure, a column a model, no cell that breaks
out of it."""

import csv as csv_module
import io

import pytest

from ridgeline.records.model import ModelReport
from ridgeline.report.renderers import csv
from ridgeline.report.renderers.markdown import render
from ridgeline.report.views.model import document, figures
from tests.unit.report.made_up import placement, report
from tests.unit.report.rendered import grid, tables


def rows(*reports: ModelReport) -> list[list[str]]:
    return list(csv_module.reader(io.StringIO(csv.render(figures(reports)))))


def markdown(reports: list[ModelReport]) -> str:
    return render(document(reports))


def test_a_markdown_table_is_rectangular() -> None:
    table = [line for line in markdown([report(), report()]).splitlines() if line[:1] == "|"]
    assert {line.count("|") for line in table} == {4}
    assert table[1] == "| --- | ---: | ---: |"


def test_numbers_read_as_people_write_them() -> None:
    (table,) = tables(document([report(), report()]))
    found = {label: value for label, value, _ in grid(table)}
    assert found["FLOPs, forward"] == "1 kFLOP"
    assert found["…causal part alone"] == "900 FLOP"
    assert found["latency"] == "2 ms"
    assert found["coverage"] == "93.1 %"
    assert found["peak, training (adamw)"] == "900 B"
    assert found["largest batch in 1 KiB"] == "7"


def test_notes_follow_the_table_once_each() -> None:
    text = markdown([report(), report()])
    assert text.count("- **note**: counted with care\n- **note**: the machine was busy\n") == 1


def test_a_line_that_is_empty_for_all_is_left_out_and_kept_for_one() -> None:
    untimed = report(latency=None, latency_missing="meta", fit=None)
    assert "largest batch" not in markdown([untimed, untimed])
    assert "| largest batch in 1 KiB | 7 |  |" in markdown([report(), untimed])


@pytest.mark.parametrize("name", ["a|b", "<script>", "Net|<img>"])
def test_a_name_cannot_break_out_of_markdown(name: str) -> None:
    odd = report(model=name, target=f"{name}.py:build")
    lines = markdown([odd, odd]).splitlines()
    header = next(line for line in lines if line.startswith("|"))
    assert header.replace("\\|", "").count("|") == 4
    written = [*lines, *markdown([odd]).splitlines()]
    assert not any("<" in line for line in written if "`" not in line)  # code is text


def test_a_note_cannot_carry_html_into_markdown() -> None:
    assert "<script>" not in markdown([report(notes=("raised <script>alert(1)</script>",))])


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_a_spreadsheet_does_not_run_a_cell(start: str) -> None:
    evil = f"{start}HYPERLINK(1)"
    assert ["target", f"'{evil}"] in rows(report(target=evil))
    assert rows(report(model=evil))[0] == ["figure", f"'{evil}"]


def test_a_number_below_zero_is_no_formula() -> None:
    table = dict(rows(report(placement=placement(intensity=-2.5))))
    assert table["roofline.intensity"] == "-2.5"


def test_commas_and_quotes_survive_csv() -> None:
    odd = 'a,b"c\nd'
    assert ["target", odd] in rows(report(target=odd))


def test_csv_has_a_header_and_equal_rows() -> None:
    table = rows(report(), report(model="Other"))
    assert table[0] == ["figure", "Net", "Other"]
    assert {len(row) for row in table} == {3}


def test_no_two_rows_have_the_same_name() -> None:
    labels = [row[0] for row in rows(report())]
    assert len(labels) == len(set(labels))


def test_csv_holds_raw_figures_by_their_path_in_the_document() -> None:
    table = dict(rows(report()))
    assert table["macs.forward"] == "500"
    assert table["parameters_by_dtype.float32"] == "30"
    assert table["latency.median_ms"] == "2.0"
    assert table["memory_by_mode.training.peak_bytes"] == "900"
    assert table["fit.batch"] == "7"
    # what explains the document, and lists, are left to JSON
    assert not [path for path in table if path.startswith(("conventions", "modules", "ops"))]


def test_a_figure_that_only_one_model_has_is_empty_for_the_other() -> None:
    table = rows(report(), report(fit=None))
    assert ["fit.batch", "7", ""] in table
    assert not [row for row in rows(report(fit=None)) if row[0].startswith("fit")]

"""The JSON, CSV, Markdown and page of a trace's report."""

import csv
import io

import msgspec
import pytest

from ridgeline.cli.output import formatted
from ridgeline.records.trace import TraceStudy
from ridgeline.report.reasons import explain
from ridgeline.report.views.trace import first_rows
from ridgeline.report.views.trace_comparison import data as comparison_data
from ridgeline.report.views.trace_comparison import trace_comparison_report
from ridgeline.report.views.trace_data import FIGURE_COLUMNS, SCHEMA, data
from tests.unit.report import made_up_trace as made
from tests.unit.report.rendered import trace_as

ALL = [made.study, made.several, made.nothing, made.unreliable, made.nasty]


def test_the_document_has_what_scripts_read() -> None:
    found = data(made.study())
    assert found["schema"] == SCHEMA
    assert found["window"]["ms"] == 1733
    assert found["window"]["basis"] == "device activity"
    assert found["device"]["busy_pct"] == pytest.approx(57.7034, abs=1e-4)
    assert found["device"]["idle_ms"] == 733
    assert found["validation"][0]["affects"] == ["kernels", "launch"]
    cause = found["idle_causes"][0]
    assert (cause["cause"], cause["ms"], cause["line"]) == ("input", 522, 41)
    assert cause["file"] == "/home/me/project/src/data/loader.py"
    assert cause["share_pct"] == pytest.approx(71.214, abs=1e-3)
    assert [p["line"] for p in cause["places"]] == [41, 63]
    assert found["gaps"][0]["at_ms"] == 20
    assert found["kernels"][0]["name"] == made.KERNEL
    assert found["kernels"][0]["mean_us"] == 75
    assert found["roofline"][0]["attained_pct"] == 70
    assert found["roofline_coverage"]["covered_pct"] == 81
    assert found["memory"][0]["points"][0] == [0, 100_000_000, 5_000_000_000]
    assert found["launch"]["empty_queue_pct"] == 42
    assert found["ranks"] == []
    assert found["missing"] == ["no shapes: record_shapes=True"]


def test_several_devices_are_added_up() -> None:
    found = data(made.several())
    assert found["device"]["busy_ms"] == 2000
    assert found["device"]["busy_pct"] == pytest.approx(57.7034, abs=1e-4)
    assert [d["rank"] for d in found["devices"]] == [0, 1]
    assert found["ranks"][1]["late_count"] == 31
    assert found["late"].startswith("rank 1 was last")
    assert found["collectives"][0]["bus_gb_per_s"] == 12.5


def test_a_figure_that_cannot_be_believed_is_null_with_a_reason() -> None:
    device = data(made.unreliable())["device"]
    assert (device["busy_pct"], device["idle_ms"]) == (None, None)
    assert device["why"] == "graph launches hide 97 % of the kernels"
    assert device["confidence"] == "unreliable"


def test_without_a_device_the_document_says_so() -> None:
    device = data(made.nothing())["device"]
    assert device["busy_pct"] is None
    assert "no device work" in device["why"]


@pytest.mark.parametrize("make", ALL)
def test_every_format_can_be_made_of_every_study(make: type[TraceStudy]) -> None:
    study = make()
    for ending in (".json", ".csv", ".md", ".html"):
        assert trace_as(ending, study).encode()


def many_rows(rows: int) -> TraceStudy:
    study = made.study()
    ops = tuple(
        msgspec.structs.replace(study.shapes[0], name=f"aten::op_{i}", shape=f"[{i}, 64] " * 20)
        for i in range(rows)
    )
    return msgspec.structs.replace(study, ops=ops, shapes=ops)


def test_a_page_stays_small_and_counts_what_it_leaves_out() -> None:
    full = trace_as(".html", many_rows(5000), full=True)
    assert len(full.encode()) <= 2_000_000
    assert full.count("aten::op_499<") == 2
    assert full.count("and 4,500 more; --json has them") == 2
    short = trace_as(".html", many_rows(5000))
    assert "aten::op_200<" not in short
    assert short.count("and 4,800 more, with --full") == 2
    long = "x" * 10_000  # fewer rows where even 500 are too many
    huge = msgspec.structs.replace(many_rows(1), modules=made.study().modules * 300)
    rows = tuple(msgspec.structs.replace(m, kind=long) for m in huge.modules)
    page = trace_as(".html", msgspec.structs.replace(huge, modules=rows), full=True)
    assert len(page.encode()) <= 2_000_000
    assert "more; --json has them" in page


def test_markdown_has_few_rows_and_in_full_all() -> None:
    short = trace_as(".md", many_rows(300))
    assert short.count("aten::op_") == 5 + 15
    assert "and 295 more, with --full" in short
    assert trace_as(".md", many_rows(300), full=True).count("aten::op_") == 600
    assert trace_as(".md", many_rows(300), max_rows=7).count("aten::op_") == 14


def test_the_first_rows_of_each_table_and_a_count_of_the_rest() -> None:
    found = data(first_rows(made.study(), 2))
    assert [len(found[k]) for k in ("kernels", "ops", "gaps", "shapes")] == [2, 2, 2, 1]
    assert found["kernels_left_out"] == 31 + 10


def test_files_that_could_not_be_read_are_in_the_document() -> None:
    found = data(made.several(), [("r2.json", "r2.json: no \x1btrace")])
    assert found["left_out"] == [{"file": "r2.json", "why": "r2.json: no \\x1btrace"}]
    assert data(made.study())["left_out"] == []


def test_the_csv_is_one_table_with_a_section_column() -> None:
    rows = list(csv.DictReader(io.StringIO(trace_as(".csv", made.several()))))
    assert tuple(rows[0]) == FIGURE_COLUMNS
    assert rows[0]["section"] == "device"
    sections = list(dict.fromkeys(row["section"] for row in rows))
    assert {"idle_causes", "kernels", "ops", "modules", "roofline", "ranks"} <= set(sections)
    cause = next(row for row in rows if row["section"] == "idle_causes")
    assert (cause["name"], cause["ms"], cause["line"]) == ("input", "522.0", "41")


def test_the_page_holds_its_pictures() -> None:
    text = trace_as(".html", made.study())
    assert text.count("<svg") == 3  # the split, the gaps, memory
    assert text.count('data-view="RooflinePlot"') == 1
    assert 'class="launch-bound"' in text
    assert "12 kernels overlap on stream 7" in text
    assert text.index("12 kernels overlap") < text.index("<svg")


def test_a_page_without_data_has_no_empty_pictures() -> None:
    text = trace_as(".html", made.nothing())
    assert "<svg" not in text
    assert "<table" not in text


def test_the_markdown_begins_with_the_verdict() -> None:
    lines = trace_as(".md", made.study()).splitlines()
    assert lines[0] == f"### {explain(made.study().verdict)}"
    assert "| input | 522 ms | 71.2 % | 4 | data/loader.py:41 decode +1 |" in "\n".join(lines)


def test_a_comparison_in_json_and_csv() -> None:
    found = comparison_data(made.comparison())
    assert found["change_ms"] == -91
    assert found["differences"][1]["change_ms"] == -91
    rows = list(
        csv.DictReader(io.StringIO(formatted(trace_comparison_report(made.comparison()), ".csv")))
    )
    assert rows[1]["name"] == "input"
    assert float(rows[1]["change_ms"]) == -91
